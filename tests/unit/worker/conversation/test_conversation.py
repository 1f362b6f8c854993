"""What an agent sees of its conversation, and what is in the journal before it sees it."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.inside_worker import InsideWorker, sampled_with_mask_1
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, say

from rolloutpool_common.outcomes import Boundary, Category, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.conversation import Conversation

QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 5 + 3"}]
MORE = [{"role": "user", "content": "And now?"}]

ROOT = Path(__file__).parents[4]
Talk = Callable[[Conversation], Awaitable[None]]


async def talk(
    inside: InsideWorker, tokenizer: ChatTokenizer, agent: Talk, *script: Step, **rollout: Any
) -> RolloutResult:
    """Runs one rollout whose agent is this function."""
    name = f"unit.{id(agent)}"

    @AGENTS.named(name)
    async def named(conversation: Conversation) -> FinishReason:
        await agent(conversation)
        return FinishReason.STOP

    async with scripted_trainer(tokenizer, *script) as trainer:
        return await inside.run_one(server_url=trainer.url, agent=name, messages=QUESTION, **rollout)


async def test_a_turn_that_is_not_to_be_trained_has_mask_0(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    async def agent(conversation: Conversation) -> None:
        await conversation.sample(train=False)
        await conversation.append_messages(MORE)
        await conversation.sample()

    result = await talk(inside, tokenizer, agent, say("No."), say("Yes."))
    assert sampled_with_mask_1(result.samples) == tokenizer.encode("Yes.<|im_end|>")


async def say_first(conversation: Conversation) -> None:
    await conversation.append_messages(MORE)


async def edit_first(conversation: Conversation) -> None:
    await conversation.edit(MORE)


async def say_after_an_edit(conversation: Conversation) -> None:
    await conversation.sample()
    await conversation.edit(MORE)
    await conversation.append_messages(MORE)


async def say_no_message(conversation: Conversation) -> None:
    await conversation.sample()
    await conversation.append_messages([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize("agent", [say_first, edit_first, say_after_an_edit, say_no_message])
async def test_what_an_agent_may_not_do_is_the_agent_s_fault(
    inside: InsideWorker, tokenizer: ChatTokenizer, agent: Talk
) -> None:
    result = await talk(inside, tokenizer, agent, say())
    assert result.failure is not None
    assert (result.failure.category, result.failure.boundary) == (Category.INTERNAL_ERROR, Boundary.AGENT)
    assert not result.failure.retryable


@AGENTS.named("unit.two_lines")
async def two_lines(conversation: Conversation) -> FinishReason:
    """Talks in two branches at once, each with three calls of the trainer."""
    other = conversation.open_branch(MORE)

    async def go_on(branch: Branch) -> None:
        await branch.sample()
        for _ in range(2):
            await branch.append_messages(MORE)
            await branch.sample()

    await conversation.talk_at_once(go_on(conversation), go_on(other))
    return FinishReason.STOP


@pytest.mark.parametrize("pieces", [False, True])
async def test_a_rollout_of_two_branches_has_the_samples_of_both(
    inside: InsideWorker, tokenizer: ChatTokenizer, pieces: bool
) -> None:
    run = inside.run_in_pieces if pieces else inside.run_one
    async with scripted_trainer(tokenizer, say("One."), say("Two."), say("Three.")) as trainer:
        result = await run(server_url=trainer.url, agent="unit.two_lines", messages=QUESTION)
    assert result.status is RolloutStatus.COMPLETED, result.failure
    # To the trainer they are two conversations. Neither was asked anything twice.
    keys = [exchange.key for exchange in trainer.exchanges]
    assert sorted(keys) == ["1", "1", "2", "2", "3", "3"]
    assert {exchange.uid for exchange in trainer.exchanges} == {result.uid, f"{result.uid}~1"}
    said = [token for text in ("One.", "Two.", "Three.") for token in tokenizer.encode(f"{text}<|im_end|>")]
    for sample, messages in zip(result.samples, (QUESTION, MORE), strict=True):
        assert sample.prompt_ids == tokenizer.render_prompt(messages)
        assert sampled_with_mask_1([sample]) == said
    assert (result.num_llm_calls, result.alignment) == (6, Alignment.EXACT)
    if pieces:
        assert result.attempt > 2


async def test_a_policy_that_reports_no_probabilities_is_a_warning(
    inside: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    async def agent(conversation: Conversation) -> None:
        await conversation.sample()

    assert (await talk(inside, tokenizer, agent, say(logprob=0.0))).warnings == ["zero_logprobs"]


async def test_the_agent_of_the_documents_does_what_they_say(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    page = (ROOT / "docs" / "tools-and-environments.md").read_text().partition("\n## Agents\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})
    async with scripted_trainer(
        tokenizer, say(calls=[call("add", {"a": 5, "b": 3})]), say("8"), say("Yes.")
    ) as trainer:
        result = await inside.run_one(server_url=trainer.url, agent="second_thoughts", messages=QUESTION)
    assert (result.status, result.finish_reason) == (RolloutStatus.COMPLETED, FinishReason.STOP)
    roles = [message.role for message in result.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert sampled_with_mask_1(result.samples)[-3:] == tokenizer.encode("Yes.<|im_end|>")[-3:]
