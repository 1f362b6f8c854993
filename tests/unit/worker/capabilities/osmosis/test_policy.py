"""Rollouts without ids: how a turn is asked, resumed and recorded."""

from typing import Any, cast

import pytest
from tests.support.conversations import SomeBranch, claim_of

from rolloutpool_common.errors import RequestChanged
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import PlannedTurn, TrainerKind
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_worker.capabilities.osmosis.channel import ChatChannel
from rolloutpool_worker.capabilities.osmosis.policy import ChatPolicy, NoTokens
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.echo import AskedTurn, VerifiedEcho
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.policy import Asking, Breakers, Reply, TurnCall, TurnClient
from rolloutpool_worker.policy.endpoint import ReplyLimits

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 5 + 3"}]
REPLY = Reply(
    message={"role": "assistant", "content": "8"},
    finish_reason="stop",
    token_ids=[],
    logprobs=[],
    prompt_token_ids=None,
    prefix=0,
    policy_version=None,
    keeps_ids=None,
    fingerprint=None,
)


class _Chat(ChatChannel):
    """Says one thing, and remembers what it was asked."""

    def __init__(self) -> None:
        spec = claim_of(messages_only=True).spec
        client, pause = cast(TurnClient, None), cast(Any, None)
        super().__init__(Asking(client, spec, "b-0", 1, 1, ReplyLimits(1), pause, Breakers()))
        self.asked: list[TurnCall] = []

    async def sample(self, call: TurnCall) -> Reply:
        self.asked.append(call)
        return REPLY


def asked_for(planned: PlannedTurn | None = None) -> Branch:
    return cast(Branch, SomeBranch(History(ASK), NoTokens(), planned))


async def test_a_planned_turn_is_asked_with_the_same_request_by_any_worker() -> None:
    planned = await ChatPolicy(_Chat()).plan(asked_for(), 2)
    assert (planned.plan.lengths, planned.edited) == ((), False)
    other = _Chat()
    assert await ChatPolicy(other).ask(asked_for(planned), 2) == (REPLY, AskedTurn(2))
    (call,) = other.asked
    assert (call.turn, call.body.digest, call.edited) == (2, planned.digest, False)


async def test_another_request_than_was_planned_is_not_asked() -> None:
    chat = _Chat()
    planned = await ChatPolicy(chat).plan(asked_for(), 2)
    chat.shown = [{"type": "function"}]
    with pytest.raises(RequestChanged):
        await ChatPolicy(chat).ask(asked_for(planned), 2)
    assert chat.asked == []


async def test_the_first_turn_has_no_plan_and_an_edited_one_says_so() -> None:
    chat = _Chat()
    assert (await ChatPolicy(chat).ask(asked_for(), 1))[1] == AskedTurn(1)
    planned = await ChatPolicy(chat).plan(asked_for(), 2, edited=True)
    assert (await ChatPolicy(chat).ask(asked_for(planned), 2))[1].edited


async def test_there_are_no_tokens() -> None:
    tokens = NoTokens()
    await tokens.append(ASK, [], 1)
    await tokens.replace(ASK, 1)
    tokens.resume(TrainerKind.KEEPS_IDS, ASK)
    assert await tokens.ingest_reply(REPLY, ASK, AskedTurn(1), train=True) == VerifiedEcho(DriftLabel.UNVERIFIED, None)
    assert tokens.stop_of(REPLY) is StopToken.ABSENT
    assert (tokens.ledger.entries, tokens.ledger.samples(), tokens.warnings) == ((), [], ())
    assert tokens.kind is tokens.found_kind is TrainerKind.UNKNOWN
