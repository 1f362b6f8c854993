"""Forks whose options change what their agent does: each turn is sampled after what its transcript says."""

from typing import Any

import pytest
from tests.support.forks import context_before, fork
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import ADD, say
from tests.support.vllm_server import vllm_server

from rolloutpool_common.outcomes import FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.agents.context_limit import SUMMARISE

QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]


async def run(
    inside: InsideWorker, tokenizer: ChatTokenizer, lines: list[str], turn: int, most: tuple[int, int], protocol: str
) -> RolloutResult:
    """Forks a rollout at a turn; `most` are the turns that it and its fork may have."""
    served: Any = (
        scripted_trainer(tokenizer, *map(say, lines)) if protocol == "callback" else vllm_server(tokenizer, *lines)
    )
    async with served as policy:
        options = {"server_url": policy.url, "protocol": protocol, "max_turns": most[0]}
        context = {"limit_tokens": 16, "on_limit": "summarise"}
        parent = await inside.run_one(messages=QUESTION, context=context, **options)
        assert parent.status is RolloutStatus.COMPLETED, parent.failure
        (child,) = await fork(inside, parent, turn, server_url=policy.url, max_turns=most[1])
        return child


@pytest.mark.parametrize("protocol", ["callback", "vllm"])
@pytest.mark.parametrize(("most", "asked"), [((10, 2), False), ((2, 3), True), ((10, 3), True)])
async def test_a_summary_is_asked_for_where_a_turn_is_left_for_the_answer(
    inside: InsideWorker, tokenizer: ChatTokenizer, protocol: str, most: tuple[int, int], asked: bool
) -> None:
    child = await run(inside, tokenizer, ["So far: " + ADD, "It is 38."], 2, most, protocol)
    assert child.status is RolloutStatus.COMPLETED, child.failure
    assert (SUMMARISE in tokenizer.decode(context_before(child.samples, 2))) is asked
    assert len(child.turns) == most[1]
    assert ("Summary" in str(child.messages)) is asked


@pytest.mark.parametrize("protocol", ["callback", "vllm"])
async def test_a_turn_of_the_parent_stays_what_it_was(
    inside: InsideWorker, tokenizer: ChatTokenizer, protocol: str
) -> None:
    child = await run(inside, tokenizer, [ADD, ADD, "It is 38."], 3, (2, 10), protocol)
    assert child.failure is not None
    assert child.failure.kind is FailureKind.REQUEST
    assert "turn 2 of the parent followed other messages" in child.failure.message
