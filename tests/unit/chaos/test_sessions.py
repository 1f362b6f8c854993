"""The judge of environments convicts: leaks, calls of another attempt or made twice, and wrong answers."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.chaos.environments import BAD, KEPT, LOST, choice_of, next_total
from tests.chaos.manners import Manner
from tests.chaos.sessions import Sessions, environments_of, is_environment_failure, judge_sessions

SEED = 7
FIRST = next_total(SEED, "add", 1, 2)
SECOND = next_total(FIRST, "divide", 3, 0)
ASKED = [("add", 1, 2, str(FIRST)), ("divide", 3, 0, str(SECOND))]


def session(number: int, calls: Sequence[Any] = ASKED, attempt: int = 1, environment: str = KEPT) -> list[Any]:
    """The log of one session."""
    about = {"session": f"s-{number}", "uid": "b-0", "attempt": attempt, "at": float(number)}
    told = [dict(zip(("name", "a", "b", "answer"), call, strict=True)) for call in calls]
    opened = {"event": "open", **about, "environment": environment, "port": 5000 + number}
    return [opened, *({"event": "call", **about, **call} for call in told)]


def result(**changes: Any) -> dict[str, Any]:
    calls = [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]
    calls.append({"id": "c2", "function": {"name": "divide", "arguments": {"a": 3, "b": 0}}})
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": str(FIRST), "tool_call_id": "c1"},
        {"role": "tool", "content": str(SECOND), "tool_call_id": "c2"},
    ]
    report = {"name": KEPT, "seed": SEED, "steps": 2, "reward": float(SECOND), "parts": {"calls": 2.0}}
    fields = {"status": "completed", "messages": messages, "environment": report, "grade": None, "failure": None}
    return {**fields, "reward": float(SECOND), **changes}


def judged(log: Sequence[Any], found: Any = None, name: str = KEPT, campaign: Sequence[Any] = ()) -> Sessions:
    found = found or result(environment={**result()["environment"], "name": name})
    return judge_sessions(log, {"b-0": name}, {"b-0": found}, campaign)


def test_a_rollout_that_was_played_as_it_should_is_clean() -> None:
    verdict = judged(session(1))
    assert verdict.clean
    assert (verdict.opened, verdict.played, verdict.restored) == (1, 1, 0)
    # A grader has the last word over the reward.
    assert judged(session(1), result(reward=0.5, grade={})).clean


def test_a_session_that_was_lost_is_made_again_and_answers_alike() -> None:
    verdict = judged([*session(1, ASKED[:1]), *session(2, attempt=2)])
    assert (verdict.clean, verdict.restored) == (True, 1)
    other = [("add", 1, 2, "5"), *ASKED[1:]]
    assert len(judged([*session(1, other[:1]), *session(2, attempt=2)]).wrong) == 1
    asked = [("add", 1, 3, str(FIRST)), *ASKED[1:]]
    assert judged([*session(1, asked[:1]), *session(2, attempt=2)]).wrong


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": 1.0},
        {"reward": None},
        {"environment": None},
        {"environment": {**result()["environment"], "name": LOST}},
        {"environment": {**result()["environment"], "steps": 3}},
        {"environment": {**result()["environment"], "reward": 0.0}},
        {"environment": {**result()["environment"], "seed": 8}},
        {"messages": [*result()["messages"][:-1], {**result()["messages"][-1], "content": "1"}]},
        {"messages": result()["messages"][:-1]},
        {"status": "failed", "reward": 0.0},
    ],
    ids=str,
)
def test_what_a_result_says_is_what_its_calls_give(changes: dict[str, Any]) -> None:
    assert len(judged(session(1), result(**changes)).wrong) == 1


def test_calls_that_are_not_in_the_last_session_or_are_there_twice_are_noticed() -> None:
    assert judged([]).wrong
    assert judged(session(1, ASKED[:1])).wrong
    assert judged(session(1, [*ASKED, ASKED[1]])).wrong


def test_at_most_once_means_one_session_with_calls() -> None:
    # One that was opened and not asked does no harm.
    assert judged([*session(1, []), *session(2, attempt=2)], name=LOST).clean
    assert judged([*session(1, ASKED[:1]), *session(2, attempt=2)], name=LOST).twice


def test_a_call_of_another_attempt_in_a_session_is_noticed() -> None:
    log = session(1)
    log[-1] = {**log[-1], "attempt": 2}
    assert judged(log).touched == ["b-0/1 (by b-0/2)"]


def test_what_is_open_at_the_end_is_a_leak_unless_its_worker_has_ended() -> None:
    # The port was another worker's before.
    connected = [
        {"event": "connected", "port": 5001, "pid": pid, "at": at} for pid, at in ((1, 0.1), (2, 0.9), (1, 2.0))
    ]
    note = {"event": "sessions", "open": ["s-1"], "at": 9.0}
    assert judged(session(1), campaign=[*connected, note]).left == ["b-0/1 (kept)"]
    gone = {"event": "gone", "at": 8.0}
    assert judged(session(1), campaign=[*connected, {**gone, "pid": 1}, note]).left
    verdict = judged(session(1), campaign=[*connected, {**gone, "pid": 2}, note])
    assert (verdict.clean, verdict.of_the_dead) == (True, 1)
    # One that ended with the campaign lived until then.
    assert judged(session(1), campaign=[*connected, note, {**gone, "pid": 2, "at": 9.5}]).left


def test_which_failures_are_an_environments_own() -> None:
    failed = result(failure={"kind": "infra", "category": "environment_lost"})
    assert [is_environment_failure(failed, name) for name in (LOST, *BAD, KEPT, None)] == [True] * 4 + [False] * 2
    assert not is_environment_failure(result(), LOST)
    assert not is_environment_failure(result(failure={"kind": "policy", "category": "tool_error"}), LOST)


def test_environments_are_read_from_what_was_accepted() -> None:
    accepted = {"event": "accepted", "rollouts": ["b-0", "b-1"], "environments": [None, KEPT]}
    old = {"event": "accepted", "rollouts": ["a-0"]}
    assert environments_of([accepted, old, {"event": "result"}]) == {"b-1": KEPT}


def test_the_cast_has_each_environment() -> None:
    names = [choice_of(number, Manner.STEADY, early=True).get("environment", {}).get("name") for number in range(60)]
    assert set(names) == {None, KEPT, LOST, *BAD}
    assert choice_of(19, Manner.STEADY, early=False) == choice_of(0, Manner.ONCE, early=True) == {}
