"""From runs to rows, and from rows to the page `docs/benchmarks/peers.md`.

    python -m benchmarks.peers.report [--file build/peers/peers.json] [--to docs/benchmarks/peers.md]

Factors are of runs that followed each other in one round: the median over the rounds, and half of their range. The page
is not edited by hand: what it says in words is in `catalogue`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.conversations import VARIANTS
from benchmarks.peers.catalogue import BATCHES, OURS, PEERS, UNFAIR, Described
from benchmarks.peers.driver import Run
from benchmarks.processes import ROOT
from benchmarks.report import Cell, Report, Row, table
from pydantic import BaseModel, ConfigDict

FILE = Path("build/peers/peers.json")
PAGE = Path("docs/benchmarks/peers.md")
QUICK_WARNING = "**From a quick run: it shows that the comparison works, not how fast anything is.**\n"


@dataclass(frozen=True)
class Point:
    """One load for everybody."""

    turns: int
    in_flight: int
    latency_ms: int
    rollouts: int

    @property
    def name(self) -> str:
        """What a column's head says."""
        model = f"{self.latency_ms / 1000:g} s" if self.latency_ms else "0 s"
        return f"{self.turns} turns, model {model}"


class PeerFacts(BaseModel):
    """What is known of a peer besides figures."""

    model_config = ConfigDict(frozen=True)

    name: str
    versions: dict[str, str] = {}
    missing: str | None = None
    """Why it was not measured."""


class PeersReport(Report):
    """One run of the comparison."""

    peers: list[PeerFacts]


def rows(point: Point, rounds: Sequence[Mapping[str, Run]], missing: Mapping[str, str]) -> list[Row]:
    """Returns one row per system; one that has no run in any round gives the reason."""
    return [_row(point, system, rounds, missing) for system in (*OURS, *PEERS)]


def _row(point: Point, system: Described, rounds: Sequence[Mapping[str, Run]], missing: Mapping[str, str]) -> Row:
    row: Row = {
        "point": point.name,
        "system": system.name,
        "turns": point.turns,
        "in flight": point.in_flight,
        "latency, ms": point.latency_ms,
    }
    paired = [(one[system.name], one[BATCHES]) for one in rounds if system.name in one and BATCHES in one]
    if not paired:
        return {**row, "note": missing.get(system.name, "no run")}
    own = [run for run, _ in paired]
    clients = [run.client_ms for run in own if run.client_ms is not None]
    right = {f"{run.right} of {VARIANTS}" for run in own if run.right is not None}
    return {
        **row,
        "rounds": len(own),
        "rollouts": own[0].rollouts,
        "rollouts/s": median(run.per_second for run in own),
        "CPU ms": median(run.cpu_ms for run in own),
        "of these the client": median(clients) if clients else None,
        **_factor("CPU / batches", [run.cpu_ms / batches.cpu_ms for run, batches in paired]),
        **_factor("rate / batches", [run.per_second / batches.per_second for run, batches in paired]),
        "right samples": ", ".join(sorted(right)) or None,
        "note": missing.get(system.name),
    }


def _factor(name: str, factors: Sequence[float]) -> Row:
    return {name: median(factors), f"{name} ±": (max(factors) - min(factors)) / 2}


def page(report: PeersReport) -> str:
    """Returns the page."""
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    parts = [
        f"# {report.title}\n",
        "Rendered by `python -m benchmarks.peers.report` from what `make bench-peers` left in `build/peers`; not "
        "edited by hand.\n",
        *([QUICK_WARNING] if report.quick else []),
        f"{report.measures}\n",
        f"Not measured: {report.leaves_out}\n",
        f"`{report.command}` on {machine}; {versions}.\n",
        "## CPU per rollout, as a factor to our batches\n",
        f"{_factors(report, 'CPU / batches')}\n",
        "## Rollouts per second, as a factor to our batches\n",
        f"{_factors(report, 'rate / batches')}\n",
        "## What each gives back\n",
        f"{_given_back(report)}\n",
        "## What was not fair\n",
    ]
    for direction, sentences in UNFAIR.items():
        parts += [f"{direction}:\n", *(f"- {sentence}" for sentence in sentences), ""]
    parts += ["## All figures\n", table([_shown(row) for row in report.rows])]
    return "\n".join(parts) + "\n"


def _factors(report: PeersReport, figure: str) -> str:
    points = list(dict.fromkeys(str(row["point"]) for row in report.rows))
    found: list[Row] = []
    for system in (*OURS, *PEERS):
        own = {str(row["point"]): row for row in report.rows if row["system"] == system.name}
        found.append({"": system.name, **{point: _cell(own.get(point, {}), figure) for point in points}})
    return table(found)


def _cell(row: Row, figure: str) -> Cell:
    factor, spread = row.get(figure), row.get(f"{figure} ±")
    if not isinstance(factor, float):
        return "-"
    return f"{factor:.2g} ± {spread:.1g}" if isinstance(spread, float) and spread else f"{factor:.2g}"


def _given_back(report: PeersReport) -> str:
    facts = {peer.name: peer for peer in report.peers}
    found: list[Row] = []
    for system in (*OURS, *PEERS):
        known = facts.get(system.name, PeerFacts(name=system.name))
        versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
        found.append(
            {
                "": system.name,
                "versions": known.missing or versions or "this commit",
                "gives back": system.gives_back,
                "exact": system.exact,
                "durable": system.durable,
            }
        )
    return table(found)


def _shown(row: Row) -> Row:
    return {name: cell for name, cell in row.items() if name != "point"}


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=ROOT / FILE)
    parser.add_argument("--to", type=Path, default=ROOT / PAGE)
    options = parser.parse_args()
    report = PeersReport.model_validate_json(options.file.read_text(encoding="utf-8"))
    if report.quick:
        sys.exit("benchmarks.peers.report: a quick run says nothing: run it again without --quick")
    options.to.write_text(page(report), encoding="utf-8")
    print(options.to)


if __name__ == "__main__":
    main()
