"""How an engine is asked: with the ids that were planned, and with no others."""

from typing import Any, cast

import pytest
from tests.support.conversations import SomeBranch, claim_of

from rolloutpool_common.errors import RequestChanged
from rolloutpool_common.protocol.journal import PlannedTurn
from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_worker.capabilities.engines.channel import LedgerPrompt
from rolloutpool_worker.capabilities.engines.policy import EnginePolicy
from rolloutpool_worker.capabilities.engines.reply import EngineTurn, Finish
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.policy import Reply
from rolloutpool_worker.policy.reply import SampledPart

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 5 + 3"}]
MORE: list[dict[str, Any]] = [{"role": "user", "content": "And 4 more?"}]


class _Engine:
    """Says one thing, and remembers what it was asked."""

    def __init__(self, parts: tuple[SampledPart, ...], finish: Finish, aborts: int = 0) -> None:
        self.turn = EngineTurn(parts, finish, aborts)
        self.asked: list[tuple[int, LedgerPrompt]] = []

    async def sample(self, turn: int, prompt: LedgerPrompt, *, branch: int = 0) -> EngineTurn:
        assert branch == 0
        self.asked.append((turn, prompt))
        return self.turn


class _Asking:
    """A policy, and the branch that it is asked for."""

    def __init__(self, engine: _Engine, tokens: EngineTokens) -> None:
        self.policy = EnginePolicy(engine.sample, lambda: tokens)
        self.branch = SomeBranch(History(ASK), tokens)

    async def plan(self, turn: int) -> PlannedTurn:
        self.branch.planned = await self.policy.plan(cast(Branch, self.branch), turn)
        return self.branch.planned

    async def ask(self, turn: int) -> tuple[Reply, AskedTurn]:
        return await self.policy.ask(cast(Branch, self.branch), turn)


def asker(tokenizer: ChatTokenizer, text: str, finish: Finish = Finish.STOP) -> tuple[_Asking, _Engine, EngineTokens]:
    ids = tokenizer.encode(text)
    engine = _Engine((SampledPart(ids[:1], [-0.1], "1"), SampledPart(ids[1:], [-0.2] * (len(ids) - 1), "2")), finish, 1)
    tokens = EngineTokens(claim_of().spec, tokenizer, [], TurnParser.of(tokenizer, []))
    return _Asking(engine, tokens), engine, tokens


async def test_a_later_turn_is_asked_with_what_was_planned(tokenizer: ChatTokenizer) -> None:
    asking, engine, tokens = asker(tokenizer, "It is 8.")
    reply, asked = await asking.ask(1)
    await tokens.ingest_reply(reply, ASK, asked, train=True)
    await tokens.append(MORE, ASK, 1)
    asking.branch.history.append(MORE)
    planned = await asking.plan(2)
    assert (planned.plan.lengths, planned.edited) == ((), False)
    await asking.ask(2)
    assert [turn for turn, _ in engine.asked] == [1, 2]
    # A worker that has other ids asks nothing.
    await tokens.append([*MORE, *MORE], ASK, 1)
    with pytest.raises(RequestChanged):
        await asking.ask(2)
    assert len(engine.asked) == 2


async def test_nothing_has_to_be_asked_about_repetitions(tokenizer: ChatTokenizer) -> None:
    policy = asker(tokenizer, "8")[0].policy
    assert policy.may_repeat
    assert await policy.ask_idempotent()
    assert not policy.is_news("b")
