"""Whatever is changed in a result, a replay's comparison finds it; but for what no replay can have."""

from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.finished_rollouts import forked

from rolloutpool_common.protocol.drift import PromptDifference
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentReport
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import TurnSummary
from rolloutpool_common.tokens.samples import Sample
from rolloutpool_worker.replay.differences import differences

NOT_COMPARED = {
    TurnSummary: {"turn", "start_ms", "llm_ms", "resampled", "tools"},
    # What the trainer says of its log-probabilities, and the versions that the segments name.
    Sample: {"logprobs_mode", "version_min", "version_max"},
    EnvironmentReport: {"name", "seed", "crash", "step_turns", "parts"},
}
ENVIRONMENT = EnvironmentReport(name="e", crash=CrashEffect.NONE, steps=1, step_rewards=[None], reward=0.5)
MESSAGES = [Message(role="user", content="ask"), *[Message(role="assistant", content=f"{n}") for n in range(3)]]
RECORDED = forked(environment=ENVIRONMENT, messages=MESSAGES)


def other(value: Any) -> Any:
    """Another value of the same type, as near as can be."""
    match value:
        case bool():
            return not value
        case Enum():
            return next(member for member in type(value) if member is not value)
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case dict():
            return {**value, "x": 1}
        case list():
            return value[:-1]
        case None:
            return "x"
    raise AssertionError(value)


def changed(model: BaseModel, name: str) -> Any:
    return model.model_copy(update={name: other(getattr(model, name))})


def found(**fields: Any) -> list[tuple[str, int | None, int | None, int | None]]:
    again = RECORDED.model_copy(update=fields)
    return [(one.what, one.turn, one.sample, one.position) for one in differences(RECORDED, again)]


def fields_of(model: type[BaseModel]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", sorted(model.model_fields))


def test_the_same_result_differs_in_nothing() -> None:
    assert not differences(RECORDED, RECORDED.model_copy(deep=True))


@fields_of(TurnSummary)
def test_each_field_of_a_turn(name: str) -> None:
    if name == "difference":
        proof = PromptDifference(3, [1], [2], [4])
        first = RECORDED.turns[0].model_copy(update={"difference": proof})
        assert found(turns=[first, *RECORDED.turns[1:]]) == [("difference.position", 1, None, None)]
        return
    turns = [RECORDED.turns[0], changed(RECORDED.turns[1], name), RECORDED.turns[2]]
    assert found(turns=turns) == ([] if name in NOT_COMPARED[TurnSummary] else [(name, 2, None, None)])


@fields_of(Sample)
def test_each_place_of_each_list_of_a_sample(name: str) -> None:
    first, second = RECORDED.samples
    if name in NOT_COMPARED[Sample]:
        assert not found(samples=[first, changed(second, name)])
        return
    turns = [segment.turn for segment in second.segments for _ in range(segment.n)]
    values = getattr(second, name)
    for at, value in enumerate(values):
        turn = {"segments": None, "prompt_ids": 2}.get(name, turns[at])
        new = changed(value, "n") if name == "segments" else other(value)
        again = second.model_copy(update={name: [*values[:at], new, *values[at + 1 :]]})
        assert found(samples=[first, again]) == [(name, turn, 1, at)]
    ((what, _, sample, position),) = found(samples=[first, changed(second, name)])
    assert (what, sample, position) == (name, 1, len(values) - 1)


@fields_of(EnvironmentReport)
def test_each_field_of_an_environments_report(name: str) -> None:
    expected = [] if name in NOT_COMPARED[EnvironmentReport] else [(f"environment.{name}", None, None, None)]
    assert found(environment=changed(ENVIRONMENT, name)) == expected


@pytest.mark.parametrize("name", ["status", "finish_reason", "alignment", "drift"])
def test_how_it_ended(name: str) -> None:
    value = {"x": 1} if name == "drift" else "another"
    assert found(**{name: value}) == [(name, None, None, None)]


@pytest.mark.parametrize("name", ["turns", "samples", "messages"])
def test_one_more_of_them(name: str) -> None:
    values = getattr(RECORDED, name)
    where = {"turns": (4, None, None), "samples": (None, None, None), "messages": (None, None, 4)}[name]
    assert found(**{name: [*values, values[-1]]}) == [(name, *where)]


def test_a_message_has_its_turn() -> None:
    said = Message(role="assistant", content="other")
    assert found(messages=[*MESSAGES[:2], said, said]) == [("messages.content", 2, None, 2)]
    named = Message.model_validate({**MESSAGES[0].wire(), "name": None})
    assert found(messages=[named, *MESSAGES[1:]]) == [("messages.name", None, None, 0)]
    # What an example says is no turn.
    recorded = RECORDED.model_copy(update={"messages": [said, *MESSAGES]})
    again = RECORDED.model_copy(update={"messages": [said, *MESSAGES[:1], said, *MESSAGES[2:]]})
    assert [one.turn for one in differences(recorded, again)] == [1]


def test_they_come_in_the_order_of_turns_and_are_cut() -> None:
    turns = [RECORDED.turns[0], RECORDED.turns[1].model_copy(update={"drift": "x" * 999}), RECORDED.turns[2]]
    again = RECORDED.model_copy(update={"turns": turns, "samples": RECORDED.samples[:1]})
    ((drift, samples),) = (differences(RECORDED, again),)
    assert (drift.what, samples.what) == ("drift", "samples")
    assert len(drift.replayed) == 120
