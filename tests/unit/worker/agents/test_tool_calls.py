"""The loop "sample, run the tools, sample again": what ends it, and with which reason."""

from typing import Any

import pytest
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Say, call, say

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_common.rendering import ChatTokenizer

ADD = say("adding", [call("add", {"a": 5, "b": 3})])
TEN = say("adding", [call("add", {"a": 5, "b": 3})], tokens=10)


@pytest.mark.parametrize(
    ("spec", "turns", "reason", "roles"),
    [
        ({}, [ADD, say("8")], FinishReason.STOP, "uata"),
        ({}, [say("cut", finish="length")], FinishReason.LENGTH, "ua"),
        ({"max_turns": 2}, [ADD], FinishReason.MAX_TURNS, "uatat"),
        ({"max_tokens_total": 20}, [TEN], FinishReason.MAX_TOKENS, "uata"),
        ({"metadata": {"max_assistant_turns": 2}}, [ADD], FinishReason.MAX_ASSISTANT_TURNS, "uata"),
        ({"metadata": {"budget_tokens": 1}}, [ADD], FinishReason.BUDGET_TOKENS, "ua"),
        # A hint that makes no sense is no hint.
        ({"metadata": {"max_assistant_turns": True}}, [ADD, say("8")], FinishReason.STOP, "uata"),
        ({"metadata": {"termination_strategy": ["no name"]}}, [ADD, say("8")], FinishReason.STOP, "uata"),
    ],
)
async def test_the_result_says_what_ended_it(
    inside: InsideWorker,
    tokenizer: ChatTokenizer,
    spec: dict[str, Any],
    turns: list[Say],
    reason: FinishReason,
    roles: str,
) -> None:
    """`roles` are the transcript's, by their first letters."""
    async with scripted_trainer(tokenizer, *turns) as trainer:
        result = await inside.run_one(server_url=trainer.url, **spec)
    assert result.failure is None
    assert (result.finish_reason, "".join(message.role[0] for message in result.messages)) == (reason, roles)
