"""`keep_within` on a conversation that only writes down what it was asked for."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolloutpool_common.protocol.options import ContextLimit, OnLimit
from rolloutpool_worker.agents.context_limit import RESUME, keep_within
from rolloutpool_worker.conversation.branch import SampledTurn
from rolloutpool_worker.conversation.conversation import Conversation

Message = dict[str, Any]


def said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


SYSTEM, ASK = said("system", "s"), said("user", "q")
EXCHANGES = [
    *(said("assistant", "call 1"), said("tool", "1")),
    *(said("assistant", "call 2"), said("tool", "2"), said("user", "go on")),
]


class Recorder:
    """The part of a conversation that `keep_within` uses."""

    def __init__(
        self, messages: list[Message], *, prompt: int = 2, turns: int = 2, context_tokens: int = 100, max_turns: int = 9
    ) -> None:
        self.messages = list(messages)
        self.turns = turns
        self.context_tokens = context_tokens
        self.spec = SimpleNamespace(max_turns=max_turns, messages=messages[:prompt])
        self.session: SimpleNamespace | None = None
        self.calls: list[str] = []
        self.summary: Any = "38 so far"

    async def edit(self, messages: list[Message]) -> None:
        self.calls.append("edit")
        self.messages = list(messages)

    async def append_messages(self, messages: list[Message]) -> None:
        self.calls.append("say")
        self.messages += messages

    async def sample(self) -> SampledTurn:
        self.calls.append("sample")
        message = said("assistant", self.summary)
        self.messages.append(message)
        self.turns += 1
        return SampledTurn(self.turns, message, [], "stop", 3)


async def keep(recorder: Recorder, on_limit: OnLimit, limit: int = 100) -> Recorder:
    await keep_within(cast(Conversation, recorder), ContextLimit(limit_tokens=limit, on_limit=on_limit))
    return recorder


@pytest.mark.parametrize("on_limit", OnLimit)
async def test_nothing_happens_below_the_limit_or_before_the_first_turn(on_limit: OnLimit) -> None:
    for recorder in (
        Recorder([SYSTEM, ASK, *EXCHANGES], context_tokens=99),
        Recorder([SYSTEM, ASK], turns=0),
    ):
        assert (await keep(recorder, on_limit)).calls == []


async def test_truncation_keeps_the_task_and_the_last_exchange() -> None:
    recorder = await keep(Recorder([SYSTEM, ASK, *EXCHANGES]), OnLimit.TRUNCATE)
    assert recorder.messages == [SYSTEM, ASK, *EXCHANGES[2:]]
    # What is left cannot be made shorter.
    assert (await keep(recorder, OnLimit.TRUNCATE)).calls == ["edit"]


async def test_a_summary_takes_the_place_of_all_but_the_task() -> None:
    recorder = await keep(Recorder([SYSTEM, ASK, *EXCHANGES]), OnLimit.SUMMARISE)
    assert recorder.calls == ["say", "sample", "edit"]
    assert recorder.messages == [SYSTEM, ASK, said("user", RESUME + "38 so far")]


@pytest.mark.parametrize(("max_turns", "calls"), [(3, []), (4, ["say", "sample", "edit"])])
async def test_a_summary_that_leaves_no_turn_for_the_answer_is_not_made(max_turns: int, calls: list[str]) -> None:
    recorder = Recorder([SYSTEM, ASK, *EXCHANGES], turns=2, max_turns=max_turns)
    assert (await keep(recorder, OnLimit.SUMMARISE)).calls == calls


@pytest.mark.parametrize("summary", [None, "", " \n"])
async def test_a_policy_that_writes_no_summary_loses_no_more_than_by_truncation(summary: str | None) -> None:
    recorder = Recorder([SYSTEM, ASK, *EXCHANGES])
    recorder.summary = summary
    await keep(recorder, OnLimit.SUMMARISE)
    assert recorder.calls == ["say", "sample", "edit"]
    assert recorder.messages == [SYSTEM, ASK, *EXCHANGES[2:]]


async def test_without_a_user_message_the_whole_prompt_is_the_task() -> None:
    recorder = await keep(Recorder([SYSTEM, *EXCHANGES], prompt=1), OnLimit.TRUNCATE)
    assert recorder.messages == [SYSTEM, *EXCHANGES[2:]]


async def test_what_a_session_began_with_is_part_of_the_task() -> None:
    invitation = said("user", "Guess a number.")
    recorder = Recorder([SYSTEM, ASK, invitation, *EXCHANGES], prompt=3)
    recorder.session = SimpleNamespace(messages=[invitation])
    await keep(recorder, OnLimit.TRUNCATE)
    assert recorder.messages == [SYSTEM, ASK, invitation, *EXCHANGES[2:]]
    # A session of tools alone adds nothing.
    recorder = Recorder([SYSTEM, ASK, said("user", "more"), *EXCHANGES], prompt=3)
    recorder.session = SimpleNamespace(messages=[])
    await keep(recorder, OnLimit.TRUNCATE)
    assert recorder.messages == [SYSTEM, ASK, *EXCHANGES[2:]]
