"""`CallbackPolicy` with a channel that writes down its calls: one body per turn, and a second mask if need be."""

from typing import Any, cast

import orjson
import pytest
from tests.support.conversations import SomeBranch

from rolloutpool_common.errors import MaskImpossible, TrainerStatusError
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn
from rolloutpool_common.protocol.turn_headers import Echo
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.repeated_echo import EchoText
from rolloutpool_worker.policy.reply import Reply

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

    def is_news(self, batch_id: str) -> bool:
        return False

    async def ask_idempotent(self) -> bool:
        return False

    def body(self, messages: MessageBytes, zeros: int) -> TurnBody:
        self.bodies += 1
        return messages.body(orjson.dumps([0] * zeros or None))

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


class Planned:
    """A policy, and the branch that it is asked for."""

    def __init__(self, plan: MaskPlan, *refusals: TrainerStatusError) -> None:
        self.channel, self.tokens = Channel(list(refusals)), Tokens(plan)
        self.policy = CallbackPolicy(cast(CallbackChannel, self.channel), lambda: cast(TokenTrack, self.tokens))
        self.branch = SomeBranch(History(HISTORY), self.policy.open_tokens())

    async def plan(self, turn: int, *, edited: bool = False) -> PlannedTurn:
        planned = await self.policy.plan(cast(Branch, self.branch), turn, edited=edited)
        self.branch.planned = planned
        return planned

    async def ask(self, turn: int) -> tuple[Reply, AskedTurn]:
        return await self.policy.ask(cast(Branch, self.branch), turn)


async def test_a_refused_mask_is_followed_by_the_next_one() -> None:
    plan = MaskPlan((4, 3), 3, 4)
    asking = Planned(plan, REFUSED)
    await asking.plan(2)
    assert await asking.ask(2) == (REPLY, AskedTurn(2, plan, 3))
    calls = asking.channel.calls
    masks = [call.body.data.rpartition(b"[")[2] for call in calls]
    assert ([call.mask for call in calls], masks) == ([1, 2], [b"0,0,0,0]", b"0,0,0]"])


async def test_they_are_counted_anew_once() -> None:
    asking = Planned(MaskPlan((4,), 3, 4), *[REFUSED] * 5)
    asking.tokens.second = MaskPlan((2, 3), 3, 2)
    await asking.plan(2)
    with pytest.raises(TrainerStatusError):
        await asking.ask(2)
    assert len(asking.channel.calls) == 3


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
    asking = Planned(plan, *refusals)
    await asking.plan(2)
    with pytest.raises(error):
        await asking.ask(2)
    assert len(asking.channel.calls) == len(refusals)
