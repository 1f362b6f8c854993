"""Writes the tables of docs/ that describe models, settings and routes: `make generate`; `--check` writes nothing.

1. A page marks the place of a table: a line `<!-- table: NAME -->`, the table, a line `<!-- end -->`.
2. A field means what the docstring below it says. Default and bounds are the model's own.
3. `--check` says which page is not current, and returns 1.
"""

import argparse
import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from rolloutpool_api import composition, routes
from rolloutpool_api.access import Admin, MetricsReader, Reader, Submitter
from rolloutpool_api.app import create_app
from rolloutpool_api.capabilities.harness.settings import DoorSettings
from rolloutpool_api.metrics import families
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common import errors
from rolloutpool_common.capabilities.forks.wire import ForkRequest
from rolloutpool_common.capabilities.grading import errors as grading
from rolloutpool_common.capabilities.osmosis.request import OsmosisRequest
from rolloutpool_common.outcomes import Category, FinishReason
from rolloutpool_common.process.metrics import counted, histograms
from rolloutpool_common.process.settings import ActorSettings
from rolloutpool_common.protocol import turn_headers
from rolloutpool_common.protocol.batch import BatchRequest, Priority, RolloutItem
from rolloutpool_common.protocol.options import RolloutOptions
from rolloutpool_common.protocol.result import RolloutResult, TurnSummary
from rolloutpool_common.protocol.rows import ROW_FIELDS
from rolloutpool_common.protocol.sampling import SamplingParams
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import PoolStats
from rolloutpool_common.store.measures import Measured, RedisFacts
from rolloutpool_common.tokens.samples import Sample
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.queue.flower import FlowerSettings
from rolloutpool_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "docs" / name for name in ("protocol.md", "operations.md", "training.md")),
    ROOT / "deploy" / "monitoring" / "README.md",
]
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

SCOPES = {"read": Reader, "submit": Submitter, "admin": Admin, "metrics": MetricsReader}
PLAIN = {
    *("schema_version", "uid", "rollout_id", "batch_id", "index", "group", "labels", "metadata"),
    *("prompt_tokens", "sampled_tokens", "tool_calls"),
}
"""Fields whose name says all, where they stand beside others of their kind."""
ANY = "any"
"""Stands for a label's value where there may be any."""
MOST_VALUES = 12
"""Values of a label that are listed."""
STATUSES = (302, 400, 422, 429, 500)
"""One of each class of statuses that a trainer's failure is named by."""
ERRORS = (errors, grading)
"""Modules with failures: the kernel's, and those of capabilities."""
BASES = (errors.RolloutError, errors.InfraFault, errors.PolicyFault)
"""Raised by no code: what derives from them names the failure."""


def meanings(owner: type | ModuleType) -> dict[str, str]:
    """The docstrings below the fields, members or constants of a class or module, those of base classes included."""
    found = {}
    for base in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        if not getattr(base, "__module__", "rolloutpool_").startswith("rolloutpool_"):
            continue
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(base)))
        for node, below in pairwise(tree.body[0].body if isinstance(base, type) else tree.body):
            match node, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
                case _:
                    pass
    return found


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Draws a table; `head` has the names of its columns, with bars between."""
    lines = [f"|{head}|", "|" + "---|" * (head.count("|") + 1)]
    lines += ["|" + "|".join(cell.replace("|", r"\|") for cell in row) + "|" for row in rows]
    return "\n".join(lines)


def default_of(field: FieldInfo) -> str:
    """A field's default, with the bounds of its values."""
    text = shown(field.get_default(call_default_factory=True))
    low, high = bound(field, "ge", "gt"), bound(field, "le")
    return text if low is None or high is None else f"{text} ({low:g}…{high:,})"


def bound(field: FieldInfo, *names: str) -> float | None:
    """The first of some bounds that a field has."""
    found = (getattr(rule, name, None) for rule in field.metadata for name in names)
    return next((value for value in found if value is not None), None)


def shown(value: Any) -> str:
    """A default as a table shows it."""
    if isinstance(value, tuple):
        value = value[0] if value else ""
    match value:
        case None | True | False:
            return json.dumps(value)
        case float() | int():
            return f"{value:g}" if value < 10_000 else f"{value:,}"
        case BaseModel() | {}:
            return "`{}`"
        case _ if value is PydanticUndefined:
            return "required"
        case _:
            return f"`{value}`" if value else ""


def described(
    model: type[BaseModel], called: Callable[[str, FieldInfo], str], leave_out: Iterable[str]
) -> list[tuple[str, str, str]]:
    """The name, the default and the meaning of each field."""
    said = meanings(model)
    fields = [(name, field) for name, field in model.model_fields.items() if name not in set(leave_out)]
    # Those of capabilities come last; pydantic puts them first, because they are bases.
    added = {name for base in model.__mro__ if ".capabilities." in base.__module__ for name in base.__annotations__}
    fields.sort(key=lambda field: field[0] in added)
    return [(f"`{called(name, field)}`", default_of(field), said.get(name, "")) for name, field in fields]


def fields_table(model: type[BaseModel], leave_out: Iterable[str] = ()) -> str:
    """A row for each field of a model."""
    return table("field|default|meaning", described(model, lambda name, _: name, leave_out))


def values_table(model: type[BaseModel], leave_out: Iterable[str] = ()) -> str:
    """A row for each field of what the pool answers, which has no defaults that matter."""
    said = meanings(model)
    names = [name for name in model.model_fields if name not in set(leave_out)]
    return table("field|is", [(f"`{name}`", said.get(name, "")) for name in names])


def defaults_line(model: type[BaseModel]) -> str:
    """The fields of a model with their defaults, in a line."""
    return ", ".join(f"`{name}` {default_of(field)}" for name, field in model.model_fields.items()) + "."


def settings_table(model: type[BaseSettings], leave_out: Iterable[str] = ()) -> str:
    """A row for each variable of an actor."""

    def variable(name: str, field: FieldInfo) -> str:
        return str(field.validation_alias or f"ROLLOUTPOOL_{name}").upper()

    return table("variable|default|meaning", described(model, variable, leave_out))


def members_table(head: str, members: type[StrEnum]) -> str:
    """A row for each member of an enumeration."""
    said = meanings(members)
    return table(head, [(f"`{member.value}`", said.get(member.name, "")) for member in members])


def failures() -> Iterator[errors.RolloutError]:
    """Makes every failure that a rollout can end with."""
    for module in ERRORS:
        own = (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)
        named = [value for value in own if isinstance(value, type) and issubclass(value, errors.RolloutError)]
        yield from (error() for error in named if error not in BASES)
    yield from (errors.TrainerStatusError(status=status) for status in STATUSES)
    yield grading.GradeLate(group=True)


def categories_table() -> str:
    """A row for each category, with the kinds and boundaries under which it comes."""
    seen: dict[Category, dict[str, None]] = {category: {} for category in Category}
    for failure in failures():
        seen[failure.category][f"{failure.kind}, {failure.boundary}"] = None
    said = meanings(Category)
    return table(
        "category|kind, boundary|when",
        [(f"`{category}`", "; ".join(seen[category]), said.get(category.name, "")) for category in Category],
    )


def routes_table() -> str:
    """A row for each route of the API, with the scope that it takes."""
    scopes: dict[tuple[str, str], str] = {}
    routers = [*composition.routers()]
    for found in pkgutil.iter_modules(routes.__path__):
        values = vars(importlib.import_module(f"{routes.__name__}.{found.name}")).values()
        routers += [value for value in values if isinstance(value, APIRouter)]
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            hints = list(get_type_hints(route.endpoint, include_extras=True).values())
            scope = next((name for name, caller in SCOPES.items() if caller in hints), "")
            scopes.update({(method, route.path_format): scope for method in route.methods or ()})
    described = create_app(ApiSettings(redis_url=SecretStr("redis://127.0.0.1"))).openapi()["paths"]
    rows = [
        (f"`{method.upper()} {path}`", scopes[method.upper(), path], operation["summary"])
        for path, operations in described.items()
        for method, operation in operations.items()
    ]
    return table("call|scope|does", rows)


def headers_table() -> str:
    """A row for each header of the callback."""
    said = meanings(turn_headers)
    names = [name for name in vars(turn_headers) if name.startswith("HEADER_")]
    return table("header|is", [(f"`{getattr(turn_headers, name)}`", said.get(name, "")) for name in names])


def metrics_table() -> str:
    """A row for each metric of a pool in which everything has happened once."""
    measured = {f"{metric.name}|{f'{ANY}|' * len(metric.labels)}0": 1 for metric in histograms()}
    measured |= {"|".join([metric.name, *[ANY] * len(metric.labels)]): 1 for metric in counted()}
    sums = {"": measured, ANY: {"model_call_seconds|ok|0": 1}}
    process = {"component": "api", "version": ANY, "resident_bytes": 1, "open_fds": 1, "levels": {}}
    stats = PoolStats({f"drift:{ANY}": 1, f"warning:{ANY}": 1}, 0, 0, 0, dict.fromkeys(Priority, 0.0))
    depths = dict.fromkeys(Priority, Queue(outbox=0, published=0))
    rows = []
    for family in families(stats, depths, [], Measured(sums, [process], RedisFacts(1, 2, 3), True)):
        values: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, {})[value] = None
        values.pop("le", None)
        listed = [
            f"{label}: {', '.join(known)}" if 1 < len(known) <= MOST_VALUES else label
            for label, known in ((label, sorted(found.keys() - {ANY})) for label, found in values.items())
        ]
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append((f"`{name}`", "; ".join(listed), family.documentation))
    return table("metric|labels|is", rows)


def row_fields() -> str:
    """The fields of a row, in a line."""
    return ", ".join(f"`{name}`" for name in ROW_FIELDS) + "."


TABLES: Mapping[str, Callable[[], str]] = {
    "routes": routes_table,
    "v1": lambda: fields_table(RolloutRequest),
    "sampling": lambda: defaults_line(SamplingParams),
    "osmosis": lambda: fields_table(OsmosisRequest),
    "batch": lambda: fields_table(BatchRequest),
    "options": lambda: fields_table(RolloutOptions),
    "rollout": lambda: fields_table(RolloutItem, leave_out=RolloutOptions.model_fields),
    "rows": row_fields,
    "sample": lambda: values_table(Sample),
    "result": lambda: values_table(RolloutResult, leave_out=PLAIN),
    "turn": lambda: values_table(TurnSummary, leave_out=PLAIN),
    "waits": lambda: members_table("`waits_for`|why", WaitsFor),
    "finish": lambda: members_table("`finish_reason`|when", FinishReason),
    "categories": categories_table,
    "headers": headers_table,
    "fork": lambda: fields_table(ForkRequest, leave_out=("rollout_id", "group", "labels", "priority", "run")),
    "metrics": metrics_table,
    "actors": lambda: settings_table(ActorSettings),
    "api": lambda: settings_table(ApiSettings, leave_out=ActorSettings.model_fields),
    "worker": lambda: settings_table(WorkerSettings, leave_out=ActorSettings.model_fields),
    "door": lambda: settings_table(DoorSettings, leave_out=ActorSettings.model_fields),
    "runner": lambda: settings_table(RunnerSettings, leave_out=ActorSettings.model_fields),
    "flower": lambda: settings_table(FlowerSettings, leave_out=ActorSettings.model_fields),
}


def written(page: str) -> str:
    """Returns a page with its tables as the code has them now."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def main() -> int:
    """Write the pages, or with `--check` return 1 if one is not current."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is not current")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text()
        if written(text) != text:
            stale.append(page.name)
            if not check:
                page.write_text(written(text))
    if check and stale:
        print(f"{', '.join(stale)}: tables are not what the code says; run `make generate`", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
