"""`TurnAsker` with a channel that writes down what it is asked: one body per turn, and a second mask if need be."""

from typing import Any, cast

import orjson
import pytest

from rolloutpool_common.errors import MaskImpossible, RequestChanged, TrainerStatusError
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.next_turn import TurnAsker
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy import CallbackChannel, Echo, EchoText, MessageBytes, Reply, TurnBody, TurnCall

HISTORY = [{"role": "user", "content": "Calculate 15 + 23"}]
REPLY = cast(Reply, object())
KNOWN = EchoText(1200, 600, b"0" * 16)
REFUSED = TrainerStatusError("no", status=422)


class Channel:
    """Refuses so many calls, then answers."""

    def __init__(self, refusals: list[TrainerStatusError]) -> None:
        self.refusals = refusals
        self.calls: list[TurnCall] = []
        self.bodies = 0

    def body(self, messages: MessageBytes, response_mask: list[int] | None) -> TurnBody:
        self.bodies += 1
        return messages.body(orjson.dumps(response_mask))

    async def sample(self, call: TurnCall) -> Reply:
        self.calls.append(call)
        if self.refusals:
            raise self.refusals.pop(0)
        return REPLY


class Tokens:
    """Plans what the test says."""

    def __init__(self, plan: MaskPlan) -> None:
        self.plan = plan
        self.second = MaskPlan((), plan.exact, plan.rerender)
        """What is planned after all lengths of the first plan were refused."""
        self.edited: list[bool] = []

    async def replan(self, messages: Any, planned: PlannedTurn) -> MaskPlan:
        assert (messages, planned.plan) == (HISTORY, self.plan)
        return self.second

    async def plan_mask(self, messages: Any, turn: int, *, edited: bool = False) -> MaskPlan:
        del messages, turn
        self.edited.append(edited)
        return self.plan

    def offer_prefix(self, turn: int, *, edited: bool) -> Echo | None:
        return None if edited or turn < 3 else Echo(600, "00")

    def known_echo(self) -> EchoText | None:
        return KNOWN


def asker(plan: MaskPlan, *refusals: TrainerStatusError) -> tuple[TurnAsker, Channel, Tokens]:
    channel, tokens = Channel(list(refusals)), Tokens(plan)
    return TurnAsker(cast(CallbackChannel, channel), cast(TokenTrack, tokens)), channel, tokens


async def test_the_first_turn_has_no_mask() -> None:
    asking, channel, _ = asker(MaskPlan((3,), 3, None))
    assert await asking.ask(None, HISTORY, MessageBytes(HISTORY), 1) == (REPLY, AskedTurn(1))
    assert channel.calls[0].body.data.endswith(b"null")


async def test_a_planned_body_is_written_once_where_it_was_planned() -> None:
    plan, wire = MaskPlan((3,), 3, None), MessageBytes(HISTORY)
    asking, channel, _ = asker(plan)
    planned = await asking.plan(HISTORY, wire, 3)
    assert planned == PlannedTurn(plan, channel.body(wire, [0, 0, 0]).digest)
    assert await asking.ask(planned, HISTORY, wire, 3) == (REPLY, AskedTurn(3, plan, 3, offered=600))
    assert (channel.bodies, channel.calls[0].body.digest) == (2, planned.digest)
    assert channel.calls[0].known == KNOWN


async def test_another_attempt_writes_the_same_body_or_asks_nothing() -> None:
    plan, wire = MaskPlan((3,), 3, None), MessageBytes(HISTORY)
    planned = await asker(plan)[0].plan(HISTORY, wire, 2)
    again, channel, _ = asker(plan)
    await again.ask(planned, HISTORY, wire, 2)
    assert channel.calls[0].body.digest == planned.digest
    other = MessageBytes([{"role": "user", "content": "Calculate 15 + 24"}])
    with pytest.raises(RequestChanged, match="turn 2"):
        await again.ask(planned, HISTORY, other, 2)
    assert len(channel.calls) == 1


async def test_a_refused_mask_is_followed_by_the_next_one() -> None:
    plan, wire = MaskPlan((4, 3), 3, 4), MessageBytes(HISTORY)
    asking, channel, _ = asker(plan, REFUSED)
    planned = await asking.plan(HISTORY, wire, 2)
    assert await asking.ask(planned, HISTORY, wire, 2) == (REPLY, AskedTurn(2, plan, 3))
    masks = [call.body.data.rpartition(b"[")[2] for call in channel.calls]
    assert ([call.mask for call in channel.calls], masks) == ([1, 2], [b"0,0,0,0]", b"0,0,0]"])


async def test_lengths_that_are_counted_anew_follow_those_of_the_plan() -> None:
    wire, second = MessageBytes(HISTORY), MaskPlan((2,), 3, 2)
    asking, channel, tokens = asker(MaskPlan((4, 3), 3, 4), REFUSED, REFUSED)
    tokens.second = second
    planned = await asking.plan(HISTORY, wire, 2)
    assert await asking.ask(planned, HISTORY, wire, 2) == (REPLY, AskedTurn(2, second, 2))
    assert [call.mask for call in channel.calls] == [1, 2, 3]


async def test_they_are_counted_anew_once() -> None:
    wire = MessageBytes(HISTORY)
    asking, channel, tokens = asker(MaskPlan((4,), 3, 4), *[REFUSED] * 5)
    tokens.second = MaskPlan((2, 3), 3, 2)
    planned = await asking.plan(HISTORY, wire, 2)
    with pytest.raises(TrainerStatusError):
        await asking.ask(planned, HISTORY, wire, 2)
    assert len(channel.calls) == 3


@pytest.mark.parametrize(
    ("plan", "refusals", "error"),
    [
        (MaskPlan((3,), 3, None), [REFUSED], TrainerStatusError),
        (MaskPlan((4, 3), 3, 4), [REFUSED, REFUSED], TrainerStatusError),
        (MaskPlan((4, 3), 3, 4), [TrainerStatusError("no", status=503)], TrainerStatusError),
        (MaskPlan((3,), 3, -2), [REFUSED], MaskImpossible),
    ],
)
async def test_what_ends_the_turn(plan: MaskPlan, refusals: list[TrainerStatusError], error: type[Exception]) -> None:
    wire = MessageBytes(HISTORY)
    asking, channel, _ = asker(plan, *refusals)
    planned = await asking.plan(HISTORY, wire, 2)
    with pytest.raises(error):
        await asking.ask(planned, HISTORY, wire, 2)
    assert len(channel.calls) == len(refusals)


async def test_an_edited_history_is_planned_and_asked_as_one() -> None:
    wire = MessageBytes(HISTORY)
    asking, channel, tokens = asker(MaskPlan((3,), 3, None))
    planned = await asking.plan(HISTORY, wire, 3, edited=True)
    assert (planned.edited, tokens.edited) == (True, [True])
    _, asked = await asking.ask(planned, HISTORY, wire, 3)
    assert (asked.edited, asked.offered, channel.calls[0].edited, channel.calls[0].echo) == (True, 0, True, None)
