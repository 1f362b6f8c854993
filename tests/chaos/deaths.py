"""Who was declared dead, and whether the process had really ended.

The reconciler's log says whom it declared dead, and when. What is true comes from the campaign alone: the pidfds of the
census say when a process ended, and the campaign's own notes say whom it killed, stopped or cut off. A worker that was
declared dead while its process lived is a **false death**, unless the campaign had

- stopped it, or cut its host off, for longer than the limit after which a silent worker may be taken over, or
- refused its connections to Redis just then, or
- cut its host off, and its lifeline ended meanwhile: Redis was killed, say.

These are counted apart. A worker that vanishes from the list and comes back is a false death too, if no log says so.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos.long_faults import LIMIT_SECONDS
from tests.chaos.record import entries

LATE_SECONDS = 3.0
"""How late the campaign, starved by its own hogs, may notice that a process has ended."""
EARLY_SECONDS = 5.0
"""How much shorter than the limit a stop may have lasted: looks and logs are not of the same instant."""
AFTERWARDS_SECONDS = 5.0
"""For so long after a refusal ended, the verdict about it may still fall."""
SAME_SECONDS = 30.0
"""A line of the log and a look at the list this close are about the same death."""
TWICE_SECONDS = 2.0
"""Two lines of one worker this close are about the same death."""
_LINE = re.compile(r"worker (?P<worker>\S+) is (?P<declared>declared )?dead: (?P<more>.*)")


@dataclass(frozen=True)
class Declared:
    """One worker that the reconciler declared dead."""

    worker: str
    at: float
    cause: str = ""
    """What the reconciler took for evidence; nothing where the worker's parent had reported its end."""


@dataclass
class Deaths:
    """The verdict about all that were declared dead."""

    true: int = 0
    """Its process had ended."""
    false: list[str] = field(default_factory=list)
    """Its process lived, and nothing explains it."""
    beyond_limit: int = 0
    """Its process lived, and the campaign had kept it silent for longer than the limit."""
    cut_off: int = 0
    """Its process lived, and the campaign refused its connections to Redis."""
    unknown: int = 0
    """The census had never seen it: it ended within its first moments."""
    unlogged: int = 0
    """Counted by the pool's own total and in no log: the leader was killed before it wrote the line."""


def declarations(logs: Iterable[Path]) -> list[Declared]:
    """What the reconcilers' logs say, in order."""
    found = []
    for log in logs:
        causes: dict[str, str] = {}
        for entry in entries(log):
            text = entry.get("event")
            # "worker NAME is declared dead: CAUSE", and after that, or without it, "worker NAME is dead: ...".
            if isinstance(text, str) and (line := _LINE.search(text)):
                worker = line["worker"]
                if line["declared"]:
                    causes[worker] = line["more"]
                else:
                    at = datetime.fromisoformat(entry["timestamp"]).timestamp()
                    found.append(Declared(worker, at, causes.pop(worker, "")))
    return sorted(found, key=lambda declared: declared.at)


def intervals(campaign: Iterable[dict[str, Any]], kinds: Iterable[str]) -> dict[str, list[tuple[float, float]]]:
    """When these faults lasted, by target, from their notes `fault` and `over`; one without an end lasts for ever."""
    wanted = set(kinds)
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    begun: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in campaign:
        if entry.get("kind") in wanted and entry["event"] in ("fault", "over"):
            key = entry["kind"], entry["target"]
            if entry["event"] == "fault":
                begun[key].append(entry["at"])
            elif begun[key]:
                found[entry["target"]].append((begun[key].pop(0), entry["at"]))
    for (_, target), left in begun.items():
        found[target] += [(at, float("inf")) for at in left]
    return found


def judge_deaths(campaign: Sequence[dict[str, Any]], declared: Sequence[Declared]) -> Deaths:
    """Compares what the reconcilers' logs declare with what the campaign's notes say."""
    deaths = Deaths()
    members: dict[str, Mapping[str, Any]] = {}
    ended: dict[str, float] = {}
    begin, end = 0.0, float("inf")
    for entry in campaign:
        if entry["event"] == "member":
            members[entry["worker"]] = entry
        elif entry["event"] == "gone":
            ended[entry["worker"]] = entry["at"]
        elif entry["event"] == "begin":
            begin = entry["at"]
        elif entry["event"] == "end":
            end = entry["at"]
    refused = intervals(campaign, ["refuse"])
    for target, spans in intervals(campaign, ["cut off a host"]).items():
        broken = _lifelines_broken(campaign, target)
        refused.setdefault(target, []).extend(
            (at, until) for since, until in spans for at in broken if since <= at <= until
        )
    stops = _stops(campaign)
    silent = intervals(campaign, ["cut off a host"])
    for target, spans in stops.items():
        silent[target] = spans

    def judge(worker: str, at: float, cause: str = "") -> None:
        member = members.get(worker)
        if member is None:
            deaths.unknown += 1
        elif ended.get(worker, float("inf")) <= at + LATE_SECONDS:
            deaths.true += 1
        elif any(
            since + LIMIT_SECONDS - EARLY_SECONDS <= at <= until + AFTERWARDS_SECONDS
            for name in (member["host"], f"{member['pid']}")
            for since, until in silent.get(name, ())
        ):
            deaths.beyond_limit += 1
        elif any(since <= at <= until + AFTERWARDS_SECONDS for since, until in refused.get(member["host"], ())):
            deaths.cut_off += 1
        else:
            deaths.false.append(
                f"{worker} ({member['host']}) {at - begin:.1f} s after the begin{cause and ': ' + cause}"
            )

    said: dict[str, float] = {}
    for one in declared:
        # Two leaders for a moment say it twice.
        if one.at <= end and one.at - said.get(one.worker, 0.0) > TWICE_SECONDS:
            said[one.worker] = one.at
            judge(one.worker, one.at, one.cause)
    for worker, at in _returned(campaign):
        if at <= end and not any(one.worker == worker and abs(one.at - at) < SAME_SECONDS for one in declared):
            judge(worker, at)
    lost = next((entry["workers_lost"] for entry in reversed(campaign) if entry["event"] == "totals"), 0)
    deaths.unlogged = max(0, lost - len(declared))
    return deaths


def _lifelines_broken(campaign: Iterable[dict[str, Any]], host: str) -> list[float]:
    """When the connections of a host to Redis ended, whoever held them."""
    return [
        entry["at"]
        for entry in campaign
        if (entry["event"] == "ended" and entry["name"] == "redis")
        or (entry["event"] == "fault" and entry["kind"] in ("cut", "half close") and entry["target"] == host)
        or (entry["event"] == "fault" and entry["kind"] == "client kill")
    ]


def _stops(campaign: Iterable[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """When processes were stopped, by pid."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    open_stops: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for entry in campaign:
        if entry["event"] not in ("fault", "over") or not str(entry["kind"]).startswith("stop"):
            continue
        key = entry["kind"], entry["target"]
        if entry["event"] == "fault" and entry.get("pids"):
            open_stops[key].append((entry["pids"][0], entry["at"]))
        elif entry["event"] == "over" and open_stops[key]:
            pid, at = open_stops[key].pop(0)
            found[str(pid)].append((at, entry["at"]))
    return found


def _returned(campaign: Iterable[dict[str, Any]]) -> list[tuple[str, float]]:
    """Workers that were listed again, each with the time at which it was missed."""
    missed: dict[str, float] = {}
    found = []
    for entry in campaign:
        if entry["event"] == "unlisted":
            missed[entry["worker"]] = entry["at"]
        elif entry["event"] == "listed again" and entry["worker"] in missed:
            found.append((entry["worker"], missed.pop(entry["worker"])))
    return found
