"""Whether what processes and Redis use stays the same: the verdict about a soak.

A series is **steady** if the median of its last third is at most a tenth, or the allowance of its measure, above the
median of its first third. The first sixth of the samples is left out: caches, pools and heaps fill then. Growth that
hides below this rule is for the slope to show, which is printed for an hour with its 95 % interval.

Where workers come and go, a worker may end that a fault has touched, and one that was there for less than a tenth of
the soak is not judged: until it has as many rollouts as it takes, its descriptors grow.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression, median
from typing import Any

WARM_UP = 1 / 6
SHARE = 0.10
ALLOWANCE = {"memory, MB": 16.0, "descriptors": 16.0, "threads": 4.0, "clients": 50.0, "keys": 300.0}
"""Of each measure: what comes and goes with the work."""
ELASTIC = "elastic"
"""The names of hosts that come and go begin so."""
FEWEST = 9
"""Samples without which nothing can be said."""
LONG_ENOUGH = 0.1
"""Of the soak's samples, where workers come and go."""


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
    interval: float
    """Half the width of the slope's 95 % interval, as if samples were independent."""

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
    comings = False
    touched: set[int] = set()
    for entry in record:
        match entry["event"]:
            case "begin":
                begin, comings = entry["at"], entry.get("come_and_go", False)
            case "end":
                end = entry["at"]
            case "sample" if begin is not None and end is None:
                for measure, value in entry["uses"].items():
                    samples[entry["of"], measure].append((entry["clock"], value))
            case "member" if entry["isolated"]:
                isolated.add(entry["worker"])
            case "gone" if (
                begin is not None
                and end is None
                and entry["worker"] not in isolated
                and not _expected(entry, touched, comings=comings)
            ):
                ended.append(f"{entry['worker']} of {entry['host']}")
            case "fault":
                faults[entry["kind"]] += 1
                touched |= set(entry.get("pids", ())) if comings else set()
            case "left":
                left += entry["keys"]
    series, short = [], set()
    fewest = int(LONG_ENOUGH * max(map(len, samples.values()), default=0)) if comings else 0
    for (of, measure), values in sorted(samples.items()):
        if len(values) >= fewest and (one := _series(of, measure, values)) is not None:
            series.append(one)
        else:
            short.add(of)
    if comings:
        short = {of for of in short if "/worker" not in of and not of.startswith(ELASTIC)}
    seconds = (end or 0.0) - (begin or 0.0)
    return Steadiness(series, sorted(short), ended, left, dict(sorted(faults.items())), seconds)


def _expected(gone: dict[str, Any], touched: set[int], *, comings: bool) -> bool:
    """Whether a fault has ended a worker: one that was killed or drained, or whose host was taken away."""
    return gone["pid"] in touched or (comings and gone["host"].startswith(ELASTIC))


def show_steadiness(verdict: Steadiness) -> str:
    """As Markdown tables."""
    lines = ["| of | | first third | last third | per hour | steady |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.of} | {one.measure} | {one.first:.1f} | {one.last:.1f} | {one.per_hour:+.1f} ± {one.interval:.1f} | "
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
    slope, start = linear_regression(times, heights)
    middle = fmean(times)
    left = sum((height - start - slope * at) ** 2 for at, height in warm)
    error = (left / (len(warm) - 2) / sum((at - middle) ** 2 for at in times)) ** 0.5
    return Series(
        of,
        measure,
        first=median(heights[:third]),
        last=median(heights[-third:]),
        per_hour=slope * 3600,
        interval=1.96 * error * 3600,
    )
