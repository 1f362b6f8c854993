"""Whether what processes and Redis use stays the same: the verdict about a soak.

A series is **steady** if the median of its last third is at most a tenth, or the allowance of its measure, above the
median of its first third. The first sixth of the samples is left out: caches, pools and heaps fill then. Growth that
hides below this rule is for the slope to show, which is printed for an hour.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Any

__all__ = ["Series", "Steadiness", "judge_steadiness", "show_steadiness"]

WARM_UP = 1 / 6
SHARE = 0.10
ALLOWANCE = {"memory, MB": 16.0, "descriptors": 16.0, "threads": 4.0, "clients": 50.0, "keys": 300.0}
"""Of each measure: what comes and goes with the work."""
FEWEST = 9
"""Samples without which nothing can be said."""


@dataclass(frozen=True)
class Series:
    """One measure of one process."""

    of: str
    measure: str
    first: float
    """Median of the first third."""
    last: float
    per_hour: float
    """Slope."""

    @property
    def steady(self) -> bool:
        """By the rule above."""
        return self.last - self.first <= max(SHARE * self.first, ALLOWANCE[self.measure])


@dataclass
class Steadiness:
    """The verdict about one soak."""

    series: list[Series]
    short: list[str]
    """Processes that were seen too seldom to say anything: they did not live through the soak."""
    ended: list[str]
    """Workers that ended, though nothing ended any."""
    left: list[str]
    """Keys that were not there before the first batch, and are there after the last was deleted."""
    faults: dict[str, int]
    seconds: float

    @property
    def steady(self) -> bool:
        """Whether all series are, all processes lived, and nothing was left."""
        return (
            bool(self.series) and all(one.steady for one in self.series) and not (self.short or self.ended or self.left)
        )


def judge_steadiness(record: Iterable[dict[str, Any]]) -> Steadiness:
    """Judges a soak by its notes."""
    samples: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    ended, left = [], []
    faults: defaultdict[str, int] = defaultdict(int)
    isolated = set()
    begin = end = None
    for entry in record:
        match entry["event"]:
            case "begin":
                begin = entry["at"]
            case "end":
                end = entry["at"]
            case "sample" if begin is not None and end is None:
                for measure, value in entry["uses"].items():
                    samples[entry["of"], measure].append((entry["clock"], value))
            case "member" if entry["isolated"]:
                isolated.add(entry["worker"])
            case "gone" if begin is not None and end is None and entry["worker"] not in isolated:
                ended.append(f"{entry['worker']} of {entry['host']}")
            case "fault":
                faults[entry["kind"]] += 1
            case "left":
                left += entry["keys"]
    series, short = [], set()
    for (of, measure), values in sorted(samples.items()):
        if (one := _series(of, measure, values)) is not None:
            series.append(one)
        else:
            short.add(of)
    seconds = (end or 0.0) - (begin or 0.0)
    return Steadiness(series, sorted(short), ended, left, dict(sorted(faults.items())), seconds)


def show_steadiness(verdict: Steadiness) -> str:
    """As Markdown tables."""
    lines = ["| of | | first third | last third | per hour | steady |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.of} | {one.measure} | {one.first:.1f} | {one.last:.1f} | {one.per_hour:+.1f} | "
        f"{'yes' if one.steady else '**no**'} |"
        for one in verdict.series
    ]
    lines += ["", "| fault | times |", "|---|---|", *(f"| {kind} | {n} |" for kind, n in verdict.faults.items()), ""]
    lines += [f"seen too seldom: {of}" for of in verdict.short]
    lines += [f"ended: {worker}" for worker in verdict.ended]
    lines += [f"left in Redis: {key}" for key in verdict.left[:20]]
    lines.append(f"{'steady' if verdict.steady else 'NOT steady'} over {verdict.seconds:.0f} s")
    return "\n".join(lines)


def _series(of: str, measure: str, values: Sequence[tuple[float, float]]) -> Series | None:
    warm = values[int(len(values) * WARM_UP) :]
    if len(warm) < FEWEST:
        return None
    third = len(warm) // 3
    times, heights = zip(*warm, strict=True)
    return Series(
        of,
        measure,
        first=median(heights[:third]),
        last=median(heights[-third:]),
        per_hour=linear_regression(times, heights).slope * 3600,
    )
