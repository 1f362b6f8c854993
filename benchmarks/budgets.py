"""Compares one run of the benchmarks with the budgets for what a rollout may cost; exits with 1 if one is broken.

    python -m benchmarks.budgets [--folder build/bench]

Budgets are ratios of figures of the same run, so that a slower machine breaks none. A budget is broken when its figure
misses it by more than the noise of that run, which is half of the range of the paired repeats. Two kinds break
nothing: one whose benchmark was not run (it is shown as missing), and a limit in seconds, which a slower machine may
miss. A budget is what was reached and must not be lost; docs/performance.md has the aims beyond it, and what they would
take.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.load import System
from benchmarks.report import FOLDER, Cell, Report, Row, table


class Verdict(StrEnum):
    """Whether a run keeps a budget."""

    HOLDS = "holds"
    IN_NOISE = "missed within the noise"
    MISSED = "missed, in seconds"
    BROKEN = "BROKEN"
    MISSING = "not measured"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limit for one figure of one row."""

    what: str
    benchmark: str
    row: Mapping[str, Cell] = field(default_factory=dict)
    """Columns by which the row is known."""
    figure: str
    """Column; its noise is in the column of this name with ` ±`."""
    most: float = float("inf")
    least: float = 0.0
    absolute: bool = False
    """Whether the limit is in seconds of this machine."""

    def find(self, rows: Sequence[Row]) -> Row:
        """The row that it is about; empty where there is none."""
        return next((row for row in rows if all(row.get(name) == cell for name, cell in self.row.items())), {})

    def verdict(self, row: Row) -> Verdict:
        """What the row says of it."""
        figure = row.get(self.figure)
        if not isinstance(figure, int | float):
            return Verdict.MISSING
        noise = row.get(f"{self.figure} ±")
        margin = noise if isinstance(noise, int | float) else 0.0
        if self.least <= figure <= self.most:
            return Verdict.HOLDS
        if self.least - margin <= figure <= self.most + margin:
            return Verdict.IN_NOISE
        return Verdict.MISSED if self.absolute else Verdict.BROKEN

    def limit(self) -> str:
        """Returns the limit as people read it."""
        return f"≤ {self.most:g}" if self.least == 0.0 else f"≥ {self.least:g}"


_SHORT: dict[str, Cell] = {"varied": "in flight", "turns": 3, "in flight": 100, "latency, ms": 0}
_LONG: dict[str, Cell] = {"varied": "turns", "turns": 64, "in flight": 32}
_TALKATIVE: dict[str, Cell] = {"varied": "results", "turns": 64, "in flight": 32, "result, characters": 2000}
_WAITING: dict[str, Cell] = {"varied": "latency", "turns": 3, "in flight": 100, "latency, ms": 1000}
_WAYS = {
    System.POOL: "batches",
    System.POOL_SILENT: "batches, a trainer that declares nothing",
    System.POOL_V1: "POST /rollout",
    System.POOL_RERENDER: "POST /rollout, a trainer that renders again",
}


def _of(row: Mapping[str, Cell], system: System) -> dict[str, Cell]:
    return {**row, "system": system}


def _cpu(what: str, row: Mapping[str, Cell], *, most: float) -> Budget:
    """As a part of the founding pattern's."""
    row = _of(row, System.POOL)
    return Budget(
        what=f"{what} over the founding pattern's", benchmark="throughput", row=row, figure="CPU / founding", most=most
    )


def _rate(load: str, row: Mapping[str, Cell], system: System, *, least: float) -> Budget:
    """As a multiple of the founding pattern's."""
    what = f"rate over the founding pattern's, {load}, {_WAYS[system]}"
    return Budget(what=what, benchmark="throughput", row=_of(row, system), figure="rate / founding", least=least)


BUDGETS = (
    _cpu("CPU of a 3-turn rollout", _SHORT, most=0.6),
    _cpu("CPU of a 3-turn rollout in tickets of one", _SHORT | {"varied": "tickets"}, most=0.7),
    _rate("3 turns, 100 in flight", _SHORT, System.POOL, least=3),
    _rate("3 turns, 100 in flight", _SHORT, System.POOL_V1, least=2.5),
    _rate("64 turns, 32 in flight, a calculator's results", _LONG, System.POOL, least=12),
    _rate("64 turns, 32 in flight, a calculator's results", _LONG, System.POOL_V1, least=11),
    _rate("64 turns, 32 in flight, a calculator's results", _LONG, System.POOL_RERENDER, least=7),
    _rate("64 turns, 32 in flight, results of 2,000 characters", _TALKATIVE, System.POOL, least=18),
    _rate("64 turns, 32 in flight, results of 2,000 characters", _TALKATIVE, System.POOL_V1, least=13),
    _rate("64 turns, 32 in flight, results of 2,000 characters", _TALKATIVE, System.POOL_RERENDER, least=5.5),
    Budget(
        what="CPU of 64 turns, 32 in flight, batches, a trainer that declares nothing, over one that declares",
        benchmark="throughput",
        row=_of(_LONG, System.POOL_SILENT),
        figure="CPU / pool",
        most=1.1,
    ),
    _cpu("CPU of 3 turns, a model that takes 1 s", _WAITING, most=1.5),
    Budget(
        what="rate over the ideal's, 3 turns, 100 in flight, a model that takes 1 s",
        benchmark="throughput",
        row=_of(_WAITING, System.POOL),
        figure="rate / ideal",
        least=0.98,
    ),
    Budget(
        what="rate over the ideal's, 1,000 in flight, a model that takes 1 s",
        benchmark="throughput",
        row={"system": System.POOL, "in flight": 1000, "latency, ms": 1000},
        figure="rate / ideal",
        least=0.5,
    ),
    Budget(
        what="rate over the ideal's, 4,000 in flight, a model that takes 10 s",
        benchmark="crowd",
        row={"system": System.POOL},
        figure="rate / ideal",
        least=0.93,
    ),
    Budget(
        what="delay of a worker's loop, tool results of 128 kB, ms, p99",
        benchmark="loop_delay",
        row={"what": "worker, results of 131,072 characters"},
        figure="ms, p99",
        most=20,
        absolute=True,
    ),
    Budget(
        what="a turn at 128k tokens over one at 1k, exact, delta echo",
        benchmark="tokens",
        row={"tokenizer": "tiny", "size": 128_000},
        figure="delta / delta at the shortest",
        most=1.5,
    ),
    Budget(
        what="memory per rollout in flight beyond its tokens, MB",
        benchmark="memory",
        row={"what": "per rollout in flight, beyond its tokens"},
        figure="MB",
        most=0.065,
    ),
    Budget(
        what="10,000 rollouts accepted, ms",
        benchmark="submit",
        row={"rollouts": 10_000},
        figure="202, ms",
        most=1000,
        absolute=True,
    ),
    Budget(
        what="10,000 results of 18 kB read by page, s",
        benchmark="results",
        row={"way": "poll, NDJSON", "results": 10_000},
        figure="s",
        most=1,
        absolute=True,
    ),
    *(
        Budget(
            what=f"1,000 waiters on one API process, all rollouts end at once: {who}, ms late at the most",
            benchmark="waiters",
            row={"rollouts end": "all at once", "waiters": 1000, "who": who},
            figure="ms, largest",
            most=1000,
            absolute=True,
        )
        for who in ("long-poll", "events", "v1", "ping")
    ),
    *(
        Budget(
            what=f"kill -9 of a worker to the last of its rollouts elsewhere, s, kill {kill}",
            benchmark="recovery",
            row={"kill": kill},
            figure="last, s",
            most=10,
            absolute=True,
        )
        for kill in (1, 2, 3)
    ),
    Budget(
        what="demo to its first result, s",
        benchmark="demo",
        row={"run": 1},
        figure="first result, s",
        most=5,
        absolute=True,
    ),
)


def judge(reports: Mapping[str, Report], budgets: Sequence[Budget] = BUDGETS) -> list[tuple[Budget, Row, Verdict]]:
    """Each budget with its row (empty where there is none) and its verdict; `reports` by the name of the benchmark."""
    judged = []
    for budget in budgets:
        report = reports.get(budget.benchmark)
        row = budget.find(report.rows) if report else {}
        judged.append((budget, row, budget.verdict(row)))
    return judged


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the benchmarks left their JSON")
    reports = {path.stem: Report.read(path) for path in sorted(parser.parse_args().folder.glob("*.json"))}
    judged = judge(reports)
    print(
        table(
            [
                {
                    "budget": budget.what,
                    "limit": budget.limit(),
                    "measured": row.get(budget.figure),
                    "±": row.get(f"{budget.figure} ±"),
                    "verdict": verdict.value,
                }
                for budget, row, verdict in judged
            ]
        )
    )
    sys.exit(1 if any(verdict is Verdict.BROKEN for _, _, verdict in judged) else 0)


if __name__ == "__main__":
    main()
