"""Renders the benchmarks' reports into the docs: one page of tables, and a plot per figure.

    python -m benchmarks.publish [--folder build/bench] [--to docs/benchmarks]

Everything on the page comes from the reports: run the benchmarks, then this. Reports of quick runs are refused, since
their numbers say nothing.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.budgets import judge
from benchmarks.plotting import draw
from benchmarks.report import FOLDER, Report, table

ORDER = (
    "throughput",
    "crowd",
    "tokens",
    "deltas",
    "submit",
    "results",
    "waiters",
    "memory",
    "loop_delay",
    "neighbours",
    "recovery",
    "demo",
)
"""The order of the sections; others follow by name."""
_INTRODUCTION = """# Benchmarks

Rendered by `python -m benchmarks.publish` from what `make bench` left in `build/bench`; not edited by hand. Ratios of
neighbours in the same run are the figures to go by. Absolute times are those of the machine that stands above each
table. `±` is half of the range of the repeats, or of what is said in the text.
"""


def publish(reports: Sequence[Report], folder: Path) -> None:
    """Writes `README.md` and the plots into the folder, in place of those that are there.

    Raises:
        ValueError: one of the reports is of a quick run.
    """
    quick = [report.name for report in reports if report.quick]
    if quick:
        raise ValueError(f"quick runs say nothing: run {', '.join(quick)} again without --quick")
    ordered = sorted(reports, key=lambda report: (_place(report.name), report.name))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    parts = [_INTRODUCTION, *_budgets({report.name: report for report in ordered})]
    for report in ordered:
        names = []
        for number, plot in enumerate(report.plots, 1):
            name = f"{report.name}.svg" if len(report.plots) == 1 else f"{report.name}-{number}.svg"
            (folder / name).write_text(draw(report.title, plot, report.rows), encoding="utf-8")
            names.append(name)
        parts.append(_section(report, names))
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _budgets(reports: Mapping[str, Report]) -> Iterator[str]:
    yield "## Budgets\n"
    yield table(
        [
            {
                "budget": budget.what,
                "limit": budget.limit(),
                "measured": row.get(budget.figure),
                "±": row.get(f"{budget.figure} ±"),
                "verdict": verdict.value,
            }
            for budget, row, verdict in judge(reports)
        ]
    )
    yield ""


def _section(report: Report, plots: Sequence[str]) -> str:
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    return "\n\n".join(
        [
            f"## {report.title}",
            report.measures,
            f"Not measured: {report.leaves_out}",
            f"`{report.command}` on {machine}; {versions}.",
            table(report.rows),
            *(f"![{report.title}]({name})" for name in plots),
            "",
        ]
    )


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the benchmarks left their JSON")
    parser.add_argument("--to", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    # A pair compares two commits, and says nothing of how fast one is.
    reports = [Report.read(path) for path in sorted(options.folder.glob("*.json")) if path.stem != "pair"]
    try:
        publish(reports, options.to)
    except ValueError as error:
        sys.exit(f"benchmarks.publish: {error}")
    print(f"{options.to / 'README.md'}: {len(reports)} benchmarks")


if __name__ == "__main__":
    main()
