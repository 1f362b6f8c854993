"""Writes JSON schemas: `make generate`.

- docs/schemas has one of what each command prints with `--json`; `tests/unit/trainer/cli/test_documents.py` keeps them.
- deploy/helm/values.schema.json says which settings each role of the chart knows; `tests/unit/test_deploy.py` keeps it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings

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
    "ROLLOUTPOOL_DRAIN_SECONDS",
}
"""The chart sets these itself, from values of other names."""
LIBRARIES = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables of libraries, which all roles pass on."""


def variables(settings: type[BaseSettings]) -> list[str]:
    """The variables of a role."""
    return [
        str(field.validation_alias or f"ROLLOUTPOOL_{name}").upper() for name, field in settings.model_fields.items()
    ]


def chart_schema() -> dict[str, Any]:
    """The schema of the chart's values: a role refuses settings that it does not know."""

    def known(names: Iterable[str]) -> dict[str, Any]:
        value = {"type": ["string", "number", "boolean"]}
        return {
            "type": "object",
            "propertyNames": {"enum": sorted({*names, *LIBRARIES} - OWN)},
            "additionalProperties": value,
        }

    of_role = {role: variables(settings) for role, settings in ROLES.items()}
    roles = {role: {"type": "object", "properties": {"settings": known(names)}} for role, names in of_role.items()}
    everywhere = known(name for names in of_role.values() for name in names)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["secret"],
        "properties": {"secret": {"type": "string", "minLength": 1}, "settings": everywhere, **roles},
    }


def main() -> None:
    """Write all files."""
    for name, schema in {**json_schemas(), "check-tokenizer": tokenizer_report.json_schema()}.items():
        (SCHEMAS / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")
    CHART.write_text(json.dumps(chart_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
