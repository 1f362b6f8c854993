"""Writes JSON schemas: `make generate`.

- docs/schemas has one of what each command prints with `--json`; `tests/unit/trainer/cli/test_documents.py` keeps them.
- deploy/helm/values.schema.json says which values the chart has, and which settings each of its roles;
  `tests/unit/test_deploy.py` keeps it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from scripts.write_reference import bound

from rolloutpool_api.capabilities.harness.settings import DoorSettings
from rolloutpool_api.settings import ApiSettings
from rolloutpool_trainer.cli import tokenizer_report
from rolloutpool_trainer.cli.documents import json_schemas
from rolloutpool_worker.queue.flower import FlowerSettings
from rolloutpool_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "docs" / "schemas"
CHART = ROOT / "deploy" / "helm" / "values.schema.json"
ROLES: dict[str, type[BaseSettings]] = {
    "api": ApiSettings,
    "worker": WorkerSettings,
    "door": DoorSettings,
    "flower": FlowerSettings,
}
OWN = {
    *("ROLLOUTPOOL_REDIS_URL", "ROLLOUTPOOL_BROKER_URL", "ROLLOUTPOOL_REDIS_CA", "ROLLOUTPOOL_SECRETS_FILE"),
    *("ROLLOUTPOOL_API_HOST", "ROLLOUT_SERVER_PORT", "ROLLOUTPOOL_DOOR_HOST", "ROLLOUTPOOL_DOOR_PORT"),
    *("ROLLOUTPOOL_FLOWER_HOST", "ROLLOUTPOOL_FLOWER_PORT", "ROLLOUTPOOL_API_KEYS", "ROLLOUTPOOL_FLOWER_AUTH"),
    *("ROLLOUTPOOL_DRAIN_SECONDS", "ROLLOUTPOOL_API_KEYS_FILE", "ROLLOUTPOOL_ENVIRONMENTS_FILE"),
}
"""The chart sets these itself, from values of other names."""
LIBRARIES = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables of libraries, which all roles pass on."""


def variables(settings: type[BaseSettings]) -> dict[str, FieldInfo]:
    """The variables of a role, with their fields."""
    fields = settings.model_fields.items()
    return {str(field.validation_alias or f"ROLLOUTPOOL_{name}").upper(): field for name, field in fields}


def chart_schema() -> dict[str, Any]:
    """The schema of the chart's values: what values.yaml has, and the settings that a role knows."""
    of_role = {role: variables(settings) for role, settings in ROLES.items()}
    schema = shape(yaml.safe_load(CHART.with_name("values.yaml").read_text()))
    properties = schema["properties"]
    for role, known in of_role.items():
        properties[role]["properties"]["settings"] = settings_of(known)
    properties["settings"] = settings_of({name: field for known in of_role.values() for name, field in known.items()})
    # Helm gives it to a chart within another one.
    properties["global"] = {"type": "object"}
    properties["secret"]["minLength"] = 1
    for name in ("max", "rolloutsPerPod"):
        properties["worker"]["properties"]["keda"]["properties"][name]["minimum"] = 1
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "required": ["secret"]}


def settings_of(known: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The schema of some settings, whose numbers have bounds."""
    bounds = {name: limits for name in sorted(known.keys() - OWN) if (limits := _limits(known[name]))}
    return {
        "type": "object",
        "propertyNames": {"enum": sorted({*known, *LIBRARIES} - OWN)},
        "patternProperties": {"": {"type": ["string", "number", "boolean"]}},
        "properties": bounds,
    }


def _limits(field: FieldInfo) -> dict[str, float]:
    found = {"minimum": bound(field, "ge"), "exclusiveMinimum": bound(field, "gt"), "maximum": bound(field, "le")}
    return {limit: value for limit, value in found.items() if value is not None}


def shape(value: object, name: str = "") -> dict[str, Any]:
    """The schema of a value and of what is in it; what is empty or Kubernetes' own is free."""
    match value:
        case dict() if value and name != "resources":
            properties = {key: shape(inner, key) for key, inner in value.items()}
            return {"type": "object", "additionalProperties": False, "properties": properties}
        case int() if not isinstance(value, bool):
            return {"type": "integer", "minimum": 0}
    return {"type": {dict: "object", list: "array", bool: "boolean", str: "string"}[type(value)]}


def main() -> None:
    """Write all files."""
    for name, schema in {**json_schemas(), "check-tokenizer": tokenizer_report.json_schema()}.items():
        (SCHEMAS / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")
    CHART.write_text(json.dumps(chart_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
