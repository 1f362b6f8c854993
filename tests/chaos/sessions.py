"""What became of the sessions of a campaign's environments, by the log of their server; the pool's word counts nowhere.

1. Each session was closed, or replaced by a later attempt's, or ended with its server or with its worker: what a living
   worker has left open at the end is a leak.
2. No call went into a session of another rollout or attempt.
3. A fresh session that got the calls of an earlier one again has answered alike, and each completed rollout has read
   what its calls must give from its seed on, and has that total as its reward.
4. In an environment that declares `none`, no call was made twice, and none in a second session.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from tests.chaos.environments import BAD, KEPT, LOST, next_total

Entry = Mapping[str, Any]


@dataclass
class Sessions:
    """The verdict."""

    opened: int = 0
    played: int = 0
    """Completed rollouts with an environment."""
    restored: int = 0
    """Sessions that got calls of an earlier one again."""
    refused: int = 0
    """Requests of attempts that a later one had replaced, which the server refused."""
    of_the_dead: int = 0
    """Open at the end, and their worker has ended; only their server can let them expire."""
    left: list[str] = field(default_factory=list)
    """Open at the end, although their worker lives."""
    touched: list[str] = field(default_factory=list)
    """Calls in a session of another rollout or attempt."""
    wrong: list[str] = field(default_factory=list)
    """Rollouts that have read something else than their calls give, or whose fresh session answered otherwise."""
    twice: list[str] = field(default_factory=list)
    """Rollouts with a call that was made twice where at most once is declared."""

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not (self.left or self.touched or self.wrong or self.twice)


def environments_of(client: Iterable[Entry]) -> dict[str, str]:
    """The environment of each accepted rollout that has one, by uid."""
    found: dict[str, str] = {}
    for entry in client:
        if entry["event"] == "accepted" and "environments" in entry:
            pairs = zip(entry["rollouts"], entry["environments"], strict=True)
            found.update((uid, name) for uid, name in pairs if name is not None)
    return found


def is_environment_failure(result: Entry, environment: str | None) -> bool:
    """Whether it failed as a rollout in this environment may: a lost session's failures are not retried."""
    failure = result["failure"]
    return environment in (LOST, *BAD) and failure is not None and failure["kind"] == "infra"


def judge_sessions(
    log: Sequence[Entry], environments: Mapping[str, str], results: Mapping[str, Entry], campaign: Sequence[Entry]
) -> Sessions:
    """Judges by the server's log and the campaign's notes, which name the sessions that are open at the end."""
    verdict = Sessions()
    opened: dict[str, Entry] = {}
    calls: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in log:
        match entry["event"]:
            case "open":
                opened[entry["session"]] = entry
            case "call":
                calls[entry["session"]].append(entry)
            case "refused":
                verdict.refused += 1
    verdict.opened = len(opened)
    for session, mine in calls.items():
        of = opened[session]["uid"], opened[session]["attempt"]
        others = [(call["uid"], call["attempt"]) for call in mine if (call["uid"], call["attempt"]) != of]
        verdict.touched += [f"{of[0]}/{of[1]} (by {uid}/{attempt})" for uid, attempt in others]
    by_rollout: defaultdict[str, list[list[Entry]]] = defaultdict(list)
    for session, about in opened.items():
        if calls[session]:
            by_rollout[about["uid"]].append(calls[session])
    for uid, name in environments.items():
        played, result = by_rollout[uid], results.get(uid)
        verdict.restored += max(len(played) - 1, 0)
        verdict.wrong += [f"{uid} ({why})" for why in _differences(played)]
        if name == LOST and len(played) > 1:
            verdict.twice.append(f"{uid} (calls in {len(played)} sessions)")
        if result is not None and result["status"] == "completed":
            verdict.played += 1
            verdict.wrong += [f"{uid} ({name}: {why})" for why in _misread(result, name, played)]
        elif result is not None and result["grade"] is None and result["reward"] is not None:
            verdict.wrong.append(f"{uid} (failed, with reward {result['reward']})")
    _judge_left(opened, campaign, verdict)
    return verdict


def _judge_left(opened: Mapping[str, Entry], campaign: Sequence[Entry], verdict: Sessions) -> None:
    """Whose the sessions are that are open at the end. A worker is known by the connection over which it opened one."""
    connected: defaultdict[int, list[tuple[float, int | None]]] = defaultdict(list)
    for entry in campaign:
        if entry["event"] == "connected":
            connected[entry["port"]].append((entry["at"], entry["pid"]))
    note = next((entry for entry in campaign if entry["event"] == "sessions"), None)
    if note is None:
        return
    gone = {entry["pid"] for entry in campaign if entry["event"] == "gone" and entry["at"] < note["at"]}
    for session in note["open"]:
        about = opened[session]
        known = connected[about["port"]]
        place = bisect_right(known, about["at"], key=lambda connection: connection[0])
        if place and known[place - 1][1] in gone:
            verdict.of_the_dead += 1
        else:
            verdict.left.append(f"{about['uid']}/{about['attempt']} ({about['environment']})")


def _differences(sessions: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """Where the sessions of one rollout, in their order, were not asked or did not answer alike."""
    known: list[tuple[Any, ...]] = []
    for session in sessions:
        told = [tuple(call[name] for name in ("name", "a", "b", "answer")) for call in session]
        for place, (before, now) in enumerate(zip(known, told, strict=False), 1):
            if before != now:
                yield f"call {place}: {now} for {before}"
        known = max(known, told, key=len)


def _misread(result: Entry, name: str, sessions: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """What a completed rollout says and its calls do not give."""
    report = result["environment"]
    if name not in (KEPT, LOST) or report is None or report["name"] != name:
        yield "completed"
        return
    total = report["seed"]
    asked: dict[str, Entry] = {}
    count = 0
    for message in result["messages"]:
        for call in message.get("tool_calls") or ():
            asked[call["id"]] = call["function"]
        if message["role"] == "tool":
            function = asked[message["tool_call_id"]]
            arguments = function["arguments"]
            given = orjson.loads(arguments) if isinstance(arguments, str) else arguments
            total, count = next_total(total, function["name"], given["a"], given["b"]), count + 1
            if message["content"] != str(total):
                yield f"call {count} read {message['content'][:40]!r} for {total}"
                return
    if (report["reward"], report["parts"], report["steps"]) != (total, {"calls": count}, count):
        yield f"reward {report['reward']} of {report['steps']} calls for {total} of {count}"
    elif result["grade"] is None and result["reward"] != total:
        yield f"reward {result['reward']} for {total}"
    # The last session got all calls, each once.
    elif count and (not sessions or len(sessions[-1]) != count):
        yield f"its last session got {len(sessions[-1]) if sessions else 0} calls for {count}"
