"""Compares one run of the benchmarks with the budgets for what a rollout may cost; exits with 1 if one is broken.

    python -m benchmarks.budgets [--folder build/bench]

Budgets are ratios of figures of the same run, so that a slower machine breaks none. A budget is broken when its figure
misses it by more than the noise of that run, which is half of the range of the paired repeats. Three kinds break
nothing: one whose benchmark was not run (it is shown as missing), a limit in seconds, which a slower machine may miss,
and one that is known to be missed. Beside the last two stands what guards them instead.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.report import FOLDER, Cell, Report, Row, table

__all__ = ["BUDGETS", "Budget", "Verdict", "judge", "main"]


class Verdict(StrEnum):
    """Whether a run keeps a budget."""

    HOLDS = "holds"
    IN_NOISE = "missed within the noise"
    MISSED = "missed, in seconds"
    KNOWN = "MISSED, see docs/performance.md"
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
    known: bool = False
    """Whether docs/performance.md says why it does not hold."""

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
        if self.known:
            return Verdict.KNOWN
        return Verdict.MISSED if self.absolute else Verdict.BROKEN

    def limit(self) -> str:
        """Returns the limit as people read it."""
        return f"≤ {self.most:g}" if self.least == 0.0 else f"≥ {self.least:g}"


FOUNDING_MS = 7.0
"""CPU milliseconds of the founding pattern's tuned form for the same 3 turns, where the budgets were set."""
_SHORT: dict[str, Cell] = {"system": "pool", "turns": 3, "in flight": 100, "latency, ms": 0}
_LONG: dict[str, Cell] = {"system": "pool", "turns": 64, "in flight": 32}


def _cpu(what: str, varied: str, *, most_ms: float, most_yet: float) -> tuple[Budget, Budget, Budget]:
    """In milliseconds, as the same part of the founding pattern's, and what of that part is guarded."""
    row = _SHORT | {"varied": varied}
    ratio = f"{what} over the founding pattern's"
    as_set = f"{ratio} ({most_ms:g} ms where that took {FOUNDING_MS:g})"
    most = most_ms / FOUNDING_MS
    guard = f"{ratio}, no more than it was"
    return (
        Budget(what=f"{what}, ms", benchmark="throughput", row=row, figure="CPU ms", most=most_ms, absolute=True),
        Budget(what=as_set, benchmark="throughput", row=row, figure="CPU / founding", most=most, known=True),
        Budget(what=guard, benchmark="throughput", row=row, figure="CPU / founding", most=most_yet),
    )


BUDGETS = (
    *_cpu("CPU of a 3-turn rollout", "in flight", most_ms=3.5, most_yet=0.7),
    *_cpu("CPU of a 3-turn rollout in tickets of one", "tickets", most_ms=5.0, most_yet=0.95),
    Budget(
        what="rate over the founding pattern's, 3 turns, 100 in flight",
        benchmark="throughput",
        row=_SHORT | {"varied": "in flight"},
        figure="rate / founding",
        least=3,
    ),
    Budget(
        what="rate over the founding pattern's, 64 turns, 32 in flight, a calculator's results",
        benchmark="throughput",
        row=_LONG | {"varied": "turns"},
        figure="rate / founding",
        least=25,
        known=True,
    ),
    Budget(
        what="rate over the founding pattern's, 64 turns, 32 in flight, a calculator's results, as much as it was",
        benchmark="throughput",
        row=_LONG | {"varied": "turns"},
        figure="rate / founding",
        least=10,
    ),
    Budget(
        what="rate over the founding pattern's, 64 turns, 32 in flight, results of 2,000 characters",
        benchmark="throughput",
        row=_LONG | {"varied": "results", "result, characters": 2000},
        figure="rate / founding",
        least=25,
    ),
    Budget(
        what="rate over the ideal's, 1,000 in flight, a model that takes 1 s",
        benchmark="throughput",
        row={"system": "pool", "in flight": 1000, "latency, ms": 1000},
        figure="rate / ideal",
        least=0.95,
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
        most=0.05,
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
