"""What a conversation records is what it replays: cut at every record, resumed, and compared with a whole one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.conversations import QUESTION, InsideConversation, MemoryRollouts, claim_of
from tests.support.journals import untimed

from rolloutpool_common.errors import (
    AmbiguousTurn,
    RequestChanged,
    TemplateUnusable,
    TrainerUnreachable,
)
from rolloutpool_common.protocol.journal import MaskPlan
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import ClaimLost
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.history import AgentMisuse
from rolloutpool_worker.conversation.journal import StaleJournal
from rolloutpool_worker.drain import Drained
from rolloutpool_worker.tools import calculator

ADD = {
    "content": "adding",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 15, "b": 23}'}}],
}
ASK = {"role": "user", "content": "Sure?"}

assert calculator.ADD.name == "add"


async def sample(branch: Branch) -> None:
    await branch.sample()


async def tools(conversation: Conversation) -> None:
    turn = await conversation.sample()
    await conversation.run_tools(turn, append=[ASK])


async def ask(branch: Branch) -> None:
    await branch.append_messages([ASK])


async def edit(conversation: Conversation) -> None:
    await conversation.edit([*QUESTION, ASK])


Step = Callable[[Conversation], Awaitable[None]]
STEPS: tuple[Step, ...] = (tools, sample, ask, sample, edit, sample)
ANSWERS: tuple[Any, ...] = (ADD, "It is 38.", "Yes.", "Still 38.")


def state(inside: InsideConversation) -> tuple[Any, ...]:
    conversation = inside.conversation
    measures = conversation.measures
    return (
        conversation.messages,
        conversation.tokens.ledger.entries,
        conversation.tokens.kind,
        (
            untimed(measures.turns),
            measures.tool_calls,
            measures.sampled_tokens,
            measures.forked,
            measures.zero_logprobs,
        ),
        (conversation.alignment, conversation.turns, conversation.context_tokens),
    )


async def play(inside: InsideConversation, answers: tuple[Any, ...] = ANSWERS) -> None:
    inside.answer(*answers)
    for step in STEPS:
        await step(inside.conversation)


async def played(tokenizer: ChatTokenizer) -> InsideConversation:
    inside = InsideConversation(tokenizer)
    await play(inside)
    return inside


@pytest.mark.parametrize("records", range(8))
async def test_a_rollout_that_is_resumed_anywhere_ends_as_an_uninterrupted_one(
    tokenizer: ChatTokenizer, records: int
) -> None:
    whole = await played(tokenizer)
    store = MemoryRollouts()
    store.written = whole.store.written[:records]
    again = InsideConversation(tokenizer, store)
    turns = sum(record.kind == "turn" for record in store.records)
    again.answer(*ANSWERS[turns:])
    for step in STEPS:
        await step(again.conversation)
    assert state(again) == state(whole)
    assert [call.turn for call in again.channel.calls] == list(range(turns + 1, 5))
    # Each turn is asked with the same bytes by whoever asks it.
    bodies = {call.turn: call.body for call in whole.channel.calls}
    assert all(call.body == bodies[call.turn] for call in again.channel.calls)
    assert again.written == 7 - records


@pytest.mark.parametrize("records", [0, 2, 4, 6])
async def test_a_turn_whose_write_a_deadline_interrupts_is_in_tokens_messages_and_counts(
    tokenizer: ChatTokenizer, records: int
) -> None:
    inside = InsideConversation(tokenizer)
    inside.store.room = records
    with pytest.raises(asyncio.CancelledError):
        await play(inside)
    conversation, samples = inside.conversation, inside.tokens.ledger.samples()
    turns = {s.turn for sample in samples for s in sample.segments if s.kind == "sampled"}
    assert turns == set(range(1, conversation.turns + 1)) == set(range(1, records // 2 + 2))
    assert sum(map(sum, (sample.response_mask for sample in samples))) == conversation.sampled_tokens
    assert conversation.messages[-1]["role"] == "assistant"
    assert conversation.calling


@pytest.mark.parametrize("records", [1, 3, 5])
async def test_messages_whose_write_a_deadline_interrupts_are_in_tokens_and_counts_as_well(
    tokenizer: ChatTokenizer, records: int
) -> None:
    inside = InsideConversation(tokenizer)
    inside.store.room = records
    with pytest.raises(asyncio.CancelledError):
        await play(inside)
    store = MemoryRollouts()
    store.written = (await played(tokenizer)).store.written[: records + 1]
    durable = InsideConversation(tokenizer, store)
    # Its policy says nothing more, so it stops where the other one was interrupted.
    with pytest.raises(IndexError):
        await play(durable, answers=())
    assert state(inside) == state(durable)


async def test_messages_that_the_template_refuses_are_no_part_of_the_transcript(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer("It is 38.")
    conversation = inside.conversation
    await conversation.sample()
    before, body = list(conversation.messages), conversation.history.wire.body(b"]}")
    planned = inside.tokens.plan_mask

    async def refuse(*asked: Any, **named: Any) -> MaskPlan:
        del asked, named
        raise TemplateUnusable("no such message")

    inside.tokens.plan_mask = refuse  # type: ignore[method-assign]
    for step in (ask, edit):
        with pytest.raises(TemplateUnusable):
            await step(conversation)
        assert (conversation.messages, conversation.history.wire.body(b"]}")) == (before, body)
    assert planned != refuse
    assert len(inside.store.written) == 1


async def test_messages_that_are_stored_elsewhere_are_written_with_the_turn_that_follows(
    tokenizer: ChatTokenizer,
) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer("It is 38.", "Yes.")
    await inside.conversation.sample()
    await inside.conversation.append_messages([ASK], stored=True)
    assert [record.kind for record in inside.store.records] == ["turn"]
    await inside.conversation.sample()
    assert [record.kind for record in inside.store.records] == ["turn", "observation", "turn"]
    again = InsideConversation(tokenizer, inside.store)
    await again.conversation.sample()
    await again.conversation.append_messages([ASK], stored=True)
    await again.conversation.sample()
    assert state(again) == state(inside)


async def test_messages_that_wait_for_their_turn_do_not_make_it_certain(tokenizer: ChatTokenizer) -> None:
    """The worker before this one wrote nothing of them either, and may have asked the turn before it died."""
    before = InsideConversation(tokenizer)
    before.answer("It is 38.")
    await before.conversation.sample()
    again = InsideConversation(tokenizer, before.store, claim_of(attempt=2, clean=False))
    await again.conversation.sample()
    await again.conversation.append_messages([ASK], stored=True)
    with pytest.raises(AmbiguousTurn, match="turn 2"):
        await again.conversation.sample()


async def test_an_agent_that_does_something_else_is_stopped(tokenizer: ChatTokenizer) -> None:
    whole = await played(tokenizer)
    again = InsideConversation(tokenizer, whole.store).conversation
    await again.sample()
    with pytest.raises(StaleJournal, match="record 1 is ObservationRecord, not TurnRecord"):
        await again.sample()


async def test_another_body_than_the_journaled_one_is_not_asked(tokenizer: ChatTokenizer) -> None:
    whole = await played(tokenizer)
    store = MemoryRollouts()
    store.written = whole.store.written[:2]
    other = [{"role": "user", "content": "Calculate 15 + 24"}]
    again = InsideConversation(tokenizer, store, claim_of(messages=other))
    again.answer("It is 39.")
    await tools(again.conversation)
    with pytest.raises(RequestChanged, match="turn 2"):
        await again.conversation.sample()
    assert again.channel.calls == []


async def test_what_is_no_message_is_the_agent_s_fault(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer(ADD)
    turn = await inside.conversation.sample()
    for wrong in ({"role": "moderator", "content": "x"}, {"content": "x"}):
        with pytest.raises(AgentMisuse, match="not a message"):
            await inside.conversation.append_messages([wrong])
        with pytest.raises(AgentMisuse, match="not a message"):
            await inside.conversation.run_tools(turn, append=[wrong])
    with pytest.raises(AgentMisuse, match="was not sampled"):
        await inside.conversation.append_messages([ASK, {"role": "assistant", "content": "Mine."}, ASK])
    image = {"role": "user", "content": [{"type": "image", "image": "base64"}]}
    with pytest.raises(AgentMisuse, match=r"messages\[0\].content\[0\]: type image; only text is supported"):
        await inside.conversation.append_messages([image])
    assert len(inside.store.written) == 1


async def test_a_drain_stops_before_a_call_and_before_tools(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer(ADD)
    turn = await inside.conversation.sample()
    inside.drain.begin()
    with pytest.raises(Drained):
        await inside.conversation.run_tools(turn)
    with pytest.raises(Drained):
        await inside.conversation.sample()
    assert len(inside.channel.calls) == len(inside.store.written) == 1
    assert not inside.conversation.calling


@pytest.mark.parametrize("promise", [{}, {"idempotent": True}])
async def test_a_turn_that_a_dead_worker_may_have_asked_is_asked_again_only_where_that_is_safe(
    tokenizer: ChatTokenizer, promise: dict[str, Any]
) -> None:
    inside = InsideConversation(tokenizer, claim=claim_of(attempt=2, clean=False, **promise))
    inside.answer("It is 38.", "Yes.")
    assert not inside.conversation.certain
    if not promise:
        with pytest.raises(AmbiguousTurn, match="turn 1"):
            await inside.conversation.sample()
        return
    await inside.conversation.sample()
    assert inside.conversation.certain


@pytest.mark.parametrize("known", ["noted with the batch", "said in this process", "said when asked"])
async def test_a_trainer_that_announces_that_it_is_idempotent_is_asked_again(
    tokenizer: ChatTokenizer, known: str
) -> None:
    inside = InsideConversation(tokenizer, claim=claim_of(attempt=2, clean=False))
    inside.store.idempotent = known == "noted with the batch"
    inside.channel.promised = known == "said in this process"
    inside.channel.idempotent = known == "said when asked"
    inside.answer("It is 38.")
    await inside.conversation.sample()
    assert inside.conversation.certain
    assert inside.store.idempotent or known == "said when asked"


async def test_a_trainer_that_cannot_be_asked_leaves_the_doubt_for_the_next_attempt(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer, claim=claim_of(attempt=2, clean=False))
    inside.channel.idempotent = TrainerUnreachable("no connection")
    with pytest.raises(TrainerUnreachable):
        await inside.conversation.sample()
    assert not inside.conversation.certain
    assert inside.channel.calls == []


async def test_a_call_counts_as_in_flight_until_its_turn_is_durable(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer("It is 38.")
    inside.store.lost = True
    with pytest.raises(ClaimLost):
        await inside.conversation.sample()
    assert inside.conversation.calling
    with pytest.raises(ClaimLost):
        await inside.journal.resend()


async def test_the_first_call_is_noted_before_it_is_made_and_the_others_are_not(tokenizer: ChatTokenizer) -> None:
    inside = InsideConversation(tokenizer)
    inside.answer(TrainerUnreachable("gone"), "It is 38.", "Yes.")
    with pytest.raises(TrainerUnreachable):
        await inside.conversation.sample()
    assert inside.store.noted == 1
    for step in (sample, ask, sample):
        await step(inside.conversation)
    assert inside.store.noted == 1
