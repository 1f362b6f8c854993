"""Each limit and hint ends a rollout where it says, and the result says which one it was."""

from typing import Any

import pytest
from tests.support.pool import Pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Say, call, say

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.v1.response import to_v1
from rolloutpool_common.rendering import ChatTokenizer

ADD = say("adding", [call("add", {"a": 5, "b": 3})])
TEN = say("adding", [call("add", {"a": 5, "b": 3})], tokens=10)


@pytest.mark.parametrize(
    ("spec", "turns", "reason", "roles", "v1_reason"),
    [
        ({}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({}, [say("cut", finish="length")], FinishReason.LENGTH, "uA", "stop"),
        # A cut turn that calls tools goes on: only a turn that ends the rollout can end it by length.
        ({}, [say("cut", ADD.calls, finish="length"), say()], FinishReason.STOP, "uatA", "stop"),
        ({"max_turns": 1}, [ADD], FinishReason.MAX_TURNS, "uat", "max_turns"),
        ({"max_turns": 3}, [ADD], FinishReason.MAX_TURNS, "uatatat", "max_turns"),
        ({"max_tokens_total": 20}, [TEN], FinishReason.MAX_TOKENS, "uatA", "max_tokens"),
        ({"max_tokens_total": 21}, [TEN], FinishReason.MAX_TOKENS, "uatatA", "max_tokens"),
        # Reached by the answer itself: still the limit, as protocol v1 checks it first.
        ({"max_tokens_total": 1}, [say()], FinishReason.MAX_TOKENS, "uA", "max_tokens"),
        ({"metadata": {"max_assistant_turns": 2}}, [ADD], FinishReason.MAX_ASSISTANT_TURNS, "uatA", "max_turns"),
        ({"metadata": {"max_user_turns": 2}}, [ADD], FinishReason.MAX_USER_TURNS, "uatatA", "max_turns"),
        ({"metadata": {"budget_tokens": 1}}, [ADD], FinishReason.BUDGET_TOKENS, "uA", "max_tokens"),
        # A natural end is the reason, even where a hint was reached by the same turn.
        ({"metadata": {"max_assistant_turns": 2}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"termination_strategy": "after_first_call"}}, [ADD], FinishReason.STRATEGY, "uA", "stop"),
        ({"metadata": {"termination_strategy": "task_completion"}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"termination_strategy": "ask_again"}}, [say(), say()], FinishReason.STOP, "uauA", "stop"),
        # Protocol v1 ignores what no worker has; a rollout of a batch waits for a worker that has it.
        ({"v1": True, "metadata": {"termination_strategy": "?"}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"termination_strategy": ["x"]}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        # Hints that make no sense are no hints.
        ({"metadata": {"max_assistant_turns": 0}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"max_assistant_turns": True}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"max_assistant_turns": "1"}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"budget_tokens": -1}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
        ({"metadata": {"budget_tokens": 1_000_000}}, [ADD, say()], FinishReason.STOP, "uatA", "stop"),
    ],
)
async def test_the_result_says_what_ended_it(
    pool: Pool,
    tokenizer: ChatTokenizer,
    spec: dict[str, Any],
    turns: list[Say],
    reason: FinishReason,
    roles: str,
    v1_reason: str,
) -> None:
    """`roles` are the transcript's, by letter; A is a last assistant message, which no tool result follows."""
    async with scripted_trainer(tokenizer, *turns) as trainer:
        for result in await pool.run([spec, {**spec, "v1": True}], shared={"server_url": trainer.url}):
            assert (result.status, result.finish_reason, result.failure) == (RolloutStatus.COMPLETED, reason, None)
            assert "".join(m.role[0] for m in result.messages) == roles.lower()
            assert result.num_llm_calls == len(trainer.of(result.uid)) == roles.lower().count("a")
            assert result.num_tool_calls == roles.count("t")
            # The record keeps every sampled turn, whatever v1 drops.
            (sample,) = result.samples
            theirs = trainer.app.get_session(result.rollout_id, result.uid).samples[0]
            assert sample.response_ids == theirs.response_ids
            assert sample.response_mask == theirs.response_mask
            assert sum(sample.response_mask) == result.response_tokens
            answer = to_v1(result, tokenizer_name="t", timeout_seconds=600.0)
            assert answer.finish_reason == v1_reason
            kept = result.messages[:-1] if v1_reason == "max_tokens" else result.messages
            assert answer.final_messages == kept


async def test_a_budget_counts_prompt_and_sampled_tokens(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, TEN) as trainer:
        (first,) = await pool.run([{"max_turns": 1}], shared={"server_url": trainer.url})
        budget = first.turns[0].prompt_tokens + 10
        hit, missed = await pool.run(
            [{"metadata": {"budget_tokens": budget}}, {"metadata": {"budget_tokens": budget + 1}}],
            shared={"server_url": trainer.url},
        )
    assert (hit.finish_reason, hit.num_llm_calls) == (FinishReason.BUDGET_TOKENS, 1)
    assert (missed.finish_reason, missed.num_llm_calls) == (FinishReason.BUDGET_TOKENS, 2)
