"""Several branches of one rollout: in flight at once, and resumed each from its own place."""

import asyncio
from typing import Any

import pytest
from tests.support.conversations import InsideConversation, MemoryRollouts, claim_of
from tests.support.trainer_script import call

from rolloutpool_common.errors import AmbiguousTurn, TrainerUnreachable
from rolloutpool_common.protocol.journal import TurnRecord
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.drain import Drained
from rolloutpool_worker.policy.callback import TurnCall

ADD = {"content": "adding", "tool_calls": [call("add", {"a": 15, "b": 23}, "c1")]}
ASK = {"role": "user", "content": "Sure?"}
ELSEWHERE = {"role": "user", "content": "Calculate 7 * 6"}


async def talk_in_two_branches(inside: InsideConversation) -> None:
    """Two lines of talk, each of two turns; both calls of a round are in flight at once."""
    meet = asyncio.Barrier(2)
    replayed = sum(record.kind == "turn" for record in inside.store.records)

    async def hold(call: TurnCall) -> None:
        assert inside.conversation.in_flight
        if not replayed:
            await meet.wait()

    inside.channel.hold = hold  # type: ignore[method-assign]
    inside.answer(ADD, "It is 38.")
    inside.answer("It is 42.", "Yes.", branch=1)
    for record in inside.store.records:
        if record.kind == "turn":
            inside.channel.answers[record.branch].pop(0)
    main, other = inside.conversation, inside.conversation.open_branch([ELSEWHERE])

    async def speak() -> None:
        await other.sample()
        await other.append_messages([ASK])
        await other.sample()

    async def calculate() -> None:
        await main.run_tools(await main.sample())
        await main.sample()

    await main.talk_at_once(calculate(), speak())


def of_branches(inside: InsideConversation) -> list[tuple[Any, ...]]:
    return [
        (branch.messages, branch.tokens.ledger.entries, branch.turns, branch.planned)
        for branch in inside.conversation.branches
    ]


async def test_two_branches_of_a_rollout_are_in_flight_at_once(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    await talk_in_two_branches(inside)
    conversation, other = inside.conversation.branches
    assert sorted((call.branch, call.turn) for call in inside.channel.calls) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [record.branch for record in inside.store.records].count(1) == 3
    assert [message["content"] for message in other.messages] == [ELSEWHERE["content"], "It is 42.", "Sure?", "Yes."]
    # Each branch is a sample of its own, and what was sampled counts for the rollout.
    samples = [ledger.samples() for ledger in inside.conversation.ledgers]
    assert [len(of_one) for of_one in samples] == [1, 1]
    assert samples[1][0].prompt_ids == tokenizer.render_prompt([ELSEWHERE])
    assert sum(sum(sample.response_mask) for of_one in samples for sample in of_one) == (
        inside.conversation.sampled_tokens
    )
    assert (inside.store.turns, conversation.turns, other.turns) == (4, 2, 2)
    assert inside.conversation.ids == sum(len(branch.tokens.ledger) for branch in (conversation, other))
    assert not inside.conversation.in_flight


@pytest.mark.parametrize("records", range(7))
async def test_two_branches_are_resumed_wherever_each_of_them_was(tokenizer: ChatTokenizer, records: int) -> None:
    whole = InsideConversation(tokenizer)
    await talk_in_two_branches(whole)
    assert len(whole.store.written) == 6
    store = MemoryRollouts()
    store.written = whole.store.written[:records]
    known = {(record.branch, record.summary.turn) for record in store.records if isinstance(record, TurnRecord)}
    again = InsideConversation(tokenizer, store)
    await talk_in_two_branches(again)
    assert of_branches(again) == of_branches(whole)
    assert len(store.written) == 6
    bodies = {(call.branch, call.turn): call.body for call in whole.channel.calls}
    asked = {(call.branch, call.turn): call.body for call in again.channel.calls}
    assert asked == {key: body for key, body in bodies.items() if key not in known}
    assert len(again.channel.calls) == len(asked)


async def test_the_doubt_about_a_call_is_that_of_its_branch(tokenizer: ChatTokenizer) -> None:
    first = InsideConversation(tokenizer)
    first.answer("It is 38.")
    await first.conversation.sample()
    # A worker has died. It may have asked a turn of the other branch, and nothing of the main one since its record.
    again = InsideConversation(tokenizer, first.store, claim_of(attempt=2, clean=False))
    conversation, other = again.conversation, again.conversation.open_branch([ELSEWHERE])
    again.answer("Yes.")
    await conversation.sample()
    await conversation.append_messages([ASK])
    assert (conversation.certain, other.certain, conversation.all_certain) == (True, False, False)
    await conversation.sample()
    with pytest.raises(AmbiguousTurn, match="turn 1"):
        await other.sample()
    assert [call.branch for call in again.channel.calls] == [0]


async def test_a_line_that_stops_at_a_border_lets_the_others_come_to_theirs(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer("It is 38.")
    main, other = inside.conversation, inside.conversation.open_branch([ELSEWHERE])
    asked = asyncio.Event()

    async def hold(call: TurnCall) -> None:
        del call
        asked.set()
        await asyncio.sleep(0.02)

    inside.channel.hold = hold  # type: ignore[method-assign]

    async def speak() -> None:
        await asked.wait()
        inside.drain.begin()
        await other.sample()

    async def calculate() -> None:
        await main.sample()
        await main.append_messages([ASK])
        await main.sample()

    with pytest.raises(Drained):
        await main.talk_at_once(calculate(), speak())
    assert [record.kind for record in inside.store.records] == ["turn", "observation"]
    assert not main.in_flight


async def test_a_line_that_fails_ends_the_others_first(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    main, other = inside.conversation, inside.conversation.open_branch([ELSEWHERE])
    inside.answer(TrainerUnreachable("gone"), branch=1)

    async def hold(call: TurnCall) -> None:
        if call.branch == 0:
            await asyncio.Event().wait()

    inside.channel.hold = hold  # type: ignore[method-assign]

    async def go(branch: Branch) -> None:
        await branch.sample()

    with pytest.raises(TrainerUnreachable):
        await main.talk_at_once(go(main), go(other))
    # The trainer may still sample for the one that was cut off.
    assert (main.calling, main.in_flight, inside.store.written) == (True, True, [])
