"""The output of every benchmark: a table for people, and a JSON file from which the docs are rendered.

A file describes itself. Beside the rows it has what was measured, what that leaves out, how to plot it, the machine,
the versions and the command. It names no hosts and no folders.
"""

import argparse
import math
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

Cell = str | int | float | None
Row = dict[str, Cell]
"""Column to value; a column is named as people read it, with its unit: `ms, p99`."""

FOLDER = Path("build/bench")

_PACKAGES = (
    "celery",
    "fastapi",
    "httpx",
    "kombu",
    "orjson",
    "pydantic",
    "redis",
    "tokenizers",
    "transformers",
    "uvicorn",
    "uvloop",
)


class Plot(BaseModel):
    """How the rows are drawn. Names are those of columns."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["line", "bar"]
    x: str
    y: tuple[str, ...]
    """Each is a line, or a group of bars; rows without a number there are left out."""
    unit: str
    """Label of the y axis."""
    series: str | None = None
    """One line, or group of bars, per value of this column; then there is one `y`."""
    only: dict[str, Cell] = {}
    """Rows are left out whose cells differ from these."""
    log_x: bool = False
    log_y: bool = False
    budget: float | None = None
    """Drawn as a dashed line, in the unit of y."""


class Report(BaseModel):
    """One run of one benchmark."""

    model_config = ConfigDict(frozen=True)

    name: str
    title: str
    measures: str
    """What the figures are, in a few sentences."""
    leaves_out: str
    """What the figures do not show."""
    command: str
    quick: bool
    """A run with small numbers: it shows that the benchmark works, not how fast anything is."""
    machine: dict[str, str | int]
    versions: dict[str, str]
    plots: tuple[Plot, ...] = ()
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Reads a report from a file."""
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser for the options that every benchmark has."""
    options = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="small numbers: does it work, not how fast is it")
    options.add_argument("--out", type=Path, default=FOLDER / f"{name}.json", help="the JSON to write")
    return options


def emit(
    name: str,
    rows: Sequence[Row],
    options: argparse.Namespace,
    *,
    title: str,
    measures: str,
    leaves_out: str,
    plots: Sequence[Plot] = (),
) -> Report:
    """Prints the table and writes the JSON to `options.out`."""
    report = Report(
        name=name,
        title=title,
        measures=measures,
        leaves_out=leaves_out,
        command=_command(name),
        quick=options.quick,
        machine=_machine(),
        versions=_versions(),
        plots=tuple(plots),
        rows=list(rows),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"{options.out}", file=sys.stderr)
    return report


def table(rows: Sequence[Row]) -> str:
    """Returns the rows in Markdown, with columns in the order in which they first appear."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns), *([_shown(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(times: Sequence[float]) -> Row:
    """Returns cells for a distribution in milliseconds; p99 is a time that was measured."""
    ordered = sorted(times)
    return {
        "times": len(ordered),
        "ms, median": median(ordered),
        "ms, p99": ordered[math.ceil(len(ordered) * 0.99) - 1],
        "ms, largest": ordered[-1],
    }


def _shown(value: Cell) -> str:
    """Returns a cell as text, with three digits: a shared machine cannot promise more."""
    if value is None:
        return ""
    if isinstance(value, float):
        if abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _command(name: str) -> str:
    arguments = sys.argv[1:]
    kept = [
        argument
        for index, argument in enumerate(arguments)
        if not argument.startswith("--out") and (index == 0 or arguments[index - 1] != "--out")
    ]
    return shlex.join(["python", "-m", f"benchmarks.{name}", *kept])


def _machine() -> dict[str, str | int]:
    model, memory = platform.machine(), 0
    if (cpus := Path("/proc/cpuinfo")).exists():
        names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = os.getloadavg()[0]
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": f"{load:.1f}",
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
