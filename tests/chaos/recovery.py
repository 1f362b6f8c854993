"""How long rollouts take to go on after a death, from the trainers' logs and the campaign's own notes.

A rollout's recovery begins when the process that asked for its last turn died, and ends with its next call or its
result. Seconds in which the campaign itself held up what this needs are subtracted: it had stopped Redis or the process
that took over, cut this process off from Redis, or killed the rollout's trainer or cut that off.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.chaos.deaths import intervals
from tests.chaos.manners import HONEST, Manner

PROCESS = "worker"
HOST_KILLED = "host killed"
HOST_CUT_OFF = "host cut off"
SEVERAL = "several in a row"
"""A further worker that had the rollout was lost before it asked anything."""
GONE_SECONDS = 10.0
"""A process that ended so soon after its host's parent was killed ended because of that."""
SETTLED_SECONDS = 10.0
"""About what a worker takes to start beside the hogs."""
REDIS_AWAY = ("pause redis", "stop redis", "full disk", "cut off redis")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Ask:
    """A rollout asked for a turn, or its result came."""

    at: float
    attempt: int
    pid: int | None
    """Of the worker; None where it is not known, and of a result."""
    until: float = float("inf")
    """When it was answered."""
    trainer: str = ""
    """Which one was asked."""


@dataclass(frozen=True)
class Recovery:
    """One rollout went on."""

    kind: str
    seconds: float
    raw_seconds: float
    """With the seconds in which the campaign held up Redis or the process that took over."""
    suspect: str = ""
    """`with company` or `alone`, where an isolated process took it over."""
    undisturbed: bool = True
    """Whether nothing else happened to Redis, APIs and workers from `SETTLED_SECONDS` before the death until then. With
    three deaths within ten seconds, rollouts wait until a worker has started again."""
    left: int = 0
    """Workers that could take it over: they were there, were not stopped, and lived for `GONE_SECONDS` more."""


@dataclass(frozen=True)
class _Death:
    at: float
    until: float
    """Up to when its process may still ask: later than `at` where it was only cut off."""
    kind: str


def asks_of(trainers: Mapping[str, list[dict[str, Any]]], campaign: Sequence[dict[str, Any]]) -> dict[str, list[Ask]]:
    """Who asked for each rollout, in order. The worker is known by the connection that it asked over."""
    connections: defaultdict[int, list[tuple[float, int | None]]] = defaultdict(list)
    for entry in campaign:
        if entry["event"] == "connected":
            connections[entry["port"]].append((entry["at"], entry["pid"]))
    found: defaultdict[str, list[Ask]] = defaultdict(list)
    for trainer, log in trainers.items():
        answered: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
        for entry in log:
            if entry["event"] == "answer":
                answered[entry["uid"], entry["turn"], entry["attempt"]].append(entry["at"])
        for entry in log:
            if entry["event"] == "ask":
                known = connections[entry["port"]]
                place = bisect_right(known, entry["at"], key=lambda connection: connection[0])
                pid = known[place - 1][1] if place else None
                times = answered[entry["uid"], entry["turn"], entry["attempt"]]
                until = next((at for at in times if at >= entry["at"]), float("inf"))
                found[entry["uid"]].append(Ask(entry["at"], entry["attempt"], pid, until, trainer))
    for asks in found.values():
        asks.sort(key=lambda ask: ask.at)
    return found


def recoveries(
    asks: Mapping[str, Sequence[Ask]],
    results: Mapping[str, dict[str, Any]],
    manners: Mapping[str, Manner],
    campaign: Sequence[dict[str, Any]],
    trainers: Mapping[str, list[dict[str, Any]]],
) -> list[Recovery]:
    """All recoveries of rollouts of honest trainers: where the trainer refuses, a rollout waits because of that."""
    deaths = _deaths(campaign)
    isolated = {entry["pid"] for entry in campaign if entry["event"] == "member" and entry["isolated"]}
    held = _held(campaign)
    unreachable = _unreachable(campaign, trainers)
    hosts = {entry["pid"]: entry["host"] for entry in campaign if entry["event"] == "member"}
    company = _company(asks, isolated)
    disturbed = _disturbances(campaign, isolated)
    lives = _lives(campaign, isolated)
    found = []
    for uid, mine in asks.items():
        if manners.get(uid) not in HONEST:
            continue
        steps = list(mine)
        if (result := results.get(uid)) is not None:
            steps.append(Ask(result["at"], result["attempt"], None))
        for before, after in pairwise(steps):
            if after.attempt <= before.attempt or before.pid is None:
                continue
            death = next((d for d in deaths[before.pid] if before.at <= d.until and d.at < after.at), None)
            if death is None:
                continue
            raw = after.at - death.at
            blocks = [*held[None], *held[after.pid], *unreachable[before.trainer]]
            blocks += unreachable[f"{before.trainer}/{manners[uid]}"] + unreachable[hosts.get(after.pid, "")]
            away = _overlap((death.at, after.at), blocks)
            suspect = ""
            if after.pid in isolated:
                suspect = "with company" if (uid, after.at) in company else "alone"
            kind = death.kind if after.attempt == before.attempt + 1 else SEVERAL
            quiet = not any(
                death.at - SETTLED_SECONDS < at < after.at and before.pid not in pids for at, pids in disturbed
            )
            left = sum(
                begin < death.at and death.at + GONE_SECONDS < end and not _overlap((death.at, death.at + 1), held[pid])
                for pid, (begin, end) in lives.items()
            )
            found.append(Recovery(kind, raw - away, raw, suspect, quiet, left))
    return found


def pauses_of(asks: Mapping[str, Sequence[Ask]], campaign: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds from each reply to the next call of the same attempt: what a rollout waits that lost nobody.

    Where the machine is full, this is what a recovery cannot be shorter than.
    """
    held = _held(campaign)
    found = []
    for mine in asks.values():
        for before, after in pairwise(mine):
            if before.attempt == after.attempt and before.until < after.at:
                span = before.until, after.at
                found.append(after.at - before.until - _overlap(span, [*held[None], *held[after.pid]]))
    return found


def _deaths(campaign: Sequence[dict[str, Any]]) -> dict[int, list[_Death]]:
    gone = {entry["pid"]: entry for entry in campaign if entry["event"] == "gone"}
    isolated = {entry["pid"] for entry in campaign if entry["event"] == "member" and entry["isolated"]}
    end = next((entry["at"] for entry in campaign if entry["event"] == "end"), float("inf"))
    found: defaultdict[int, list[_Death]] = defaultdict(list)
    asked_to_end: set[int] = set()
    for entry in campaign:
        if entry["event"] != "fault":
            continue
        at, pids = entry["at"], entry.get("pids", ())
        if entry["kind"] == "drain":
            asked_to_end.update(pids)
        elif entry["kind"] == "kill":
            of_host = entry["what"].startswith("parent")
            for pid in pids:
                end_of = gone.get(pid)
                # An isolated process ends by itself when its worker has ended.
                if end_of is None or end_of["at"] > at + GONE_SECONDS or (of_host and pid in isolated):
                    continue
                found[pid].append(_Death(at, at, HOST_KILLED if of_host else entry["what"]))
    for target, spans in intervals(campaign, ["cut off a host"]).items():
        for at, until in spans:
            for entry in campaign:
                if entry["event"] == "member" and entry["host"] == target and entry["at"] < at:
                    found[entry["pid"]].append(_Death(at, until, HOST_CUT_OFF))
    for pid, entry in gone.items():
        by_itself = pid not in asked_to_end and pid not in isolated and entry["at"] < end
        if by_itself and not any(death.at <= entry["at"] <= death.at + GONE_SECONDS for death in found[pid]):
            # At a failpoint, or by its watchdog.
            found[pid].append(_Death(entry["at"], entry["at"], PROCESS))
    return found


def _lives(campaign: Sequence[dict[str, Any]], isolated: set[int]) -> dict[int, Interval]:
    """From when to when each worker was there that takes anybody's rollouts."""
    ends = {entry["pid"]: entry["at"] for entry in campaign if entry["event"] == "gone"}
    begins = {entry["pid"]: entry["at"] for entry in reversed(campaign) if entry["event"] == "member"}
    return {pid: (at, ends.get(pid, float("inf"))) for pid, at in begins.items() if pid not in isolated}


def _disturbances(campaign: Sequence[dict[str, Any]], isolated: set[int]) -> list[tuple[float, tuple[int, ...]]]:
    """What happened to Redis, APIs and workers: when, and to which processes of workers."""
    found: list[tuple[float, tuple[int, ...]]] = []
    for entry in campaign:
        if entry["event"] == "gone" and entry["pid"] not in isolated:
            found.append((entry["at"], (entry["pid"],)))
        elif entry["event"] == "fault" and not entry["target"].startswith("trainer") and "tickets" not in entry:
            found.append((entry["at"], tuple(entry.get("pids", ()))))
    return found


def _held(campaign: Sequence[dict[str, Any]]) -> dict[int | None, list[Interval]]:
    """When the campaign held up Redis (None), and each process."""
    found: defaultdict[int | None, list[Interval]] = defaultdict(list)
    for spans in intervals(campaign, REDIS_AWAY).values():
        found[None] += spans
    answers = [entry["at"] for entry in campaign if entry["event"] == "answers"]
    for entry in campaign:
        if entry["event"] == "ended" and entry["name"] == "redis":
            found[None].append((entry["at"], next((at for at in answers if at > entry["at"]), entry["at"])))
    ends: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in campaign:
        if entry["event"] == "over":
            ends[entry["kind"], entry["target"]].append(entry["at"])
    for entry in campaign:
        if entry["event"] == "fault" and entry["kind"].startswith(("stop", "hold the GIL", "cut off a host")):
            until = next((at for at in ends[entry["kind"], entry["target"]] if at >= entry["at"]), float("inf"))
            for pid in entry.get("pids", ()):
                found[pid].append((entry["at"], until))
    return found


def _unreachable(
    campaign: Sequence[dict[str, Any]], trainers: Mapping[str, list[dict[str, Any]]]
) -> defaultdict[str, list[Interval]]:
    """When each trainer was killed and did not listen again, and when each link was closed."""
    found: defaultdict[str, list[Interval]] = defaultdict(list)
    for name, log in trainers.items():
        starts = [entry["at"] for entry in log if entry["event"] == "start"]
        for entry in campaign:
            if entry["event"] == "ended" and entry["name"] == name:
                found[name].append((entry["at"], next((at for at in starts if at > entry["at"]), float("inf"))))
    for target, spans in intervals(campaign, ("hold", "refuse")).items():
        found[target] += spans
    return found


def _overlap(span: Interval, others: Iterable[Interval]) -> float:
    """Seconds of the span that lie in at least one of the others."""
    covered, reached = 0.0, span[0]
    for other in sorted(others):
        begin, end = max(other[0], reached), min(other[1], span[1])
        if end > begin:
            covered, reached = covered + end - begin, end
    return covered


def _company(asks: Mapping[str, Sequence[Ask]], isolated: set[int]) -> set[tuple[str, float]]:
    """The calls, as uid and time, that an isolated process made while another rollout's call was open there."""
    by_pid: defaultdict[int, list[tuple[str, Ask]]] = defaultdict(list)
    for uid, mine in asks.items():
        for ask in mine:
            if ask.pid in isolated and ask.pid is not None:
                by_pid[ask.pid].append((uid, ask))
    found = set()
    for calls in by_pid.values():
        for uid, ask in calls:
            if any(other != uid and o.at < ask.until and ask.at < o.until for other, o in calls):
                found.add((uid, ask.at))
    return found
