"""The scripted policy is deterministic, varied, and solves its questions with the tools."""

import json
from typing import Any

import pytest

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.parsing import parse_tool_calls
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


def params(messages: list[dict[str, Any]], rollout_id: str = "r", max_tokens: int = 512) -> GenerateParams:
    return GenerateParams(
        rollout_id=rollout_id,
        turn=1 + sum(message["role"] == "assistant" for message in messages),
        messages=messages,
        tools=None,
        temperature=1.0,
        top_p=1.0,
        max_tokens=max_tokens,
        stop=None,
        logprobs=True,
    )


async def play(
    tokenizer: ChatTokenizer, question: str, rollout_id: str = "r", **options: Any
) -> tuple[list[dict[str, Any]], list[Generation]]:
    """The conversation and the generations of a rollout, its tools run here."""
    policy = ScriptedPolicy(tokenizer, **options)
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    generations = []
    while True:
        generation = await policy([], params(messages, rollout_id))
        generations.append(generation)
        message = parse_tool_calls(tokenizer.decode(generation.token_ids[:-1]))
        messages.append(message.wire())
        if message.tool_calls is None:
            return messages, generations
        for call in message.tool_calls:
            arguments = json.loads(str(call.function.arguments))
            result = OPERATIONS[call.function.name](**arguments)
            messages.append({"role": "tool", "content": str(result), "tool_call_id": call.id})


async def test_deterministic_and_different_per_rollout(tokenizer: ChatTokenizer) -> None:
    question = calculator_prompts(1)[0]
    _, once = await play(tokenizer, question)
    _, again = await play(tokenizer, question)
    assert once == again
    others = {tuple((await play(tokenizer, question, f"r{i}"))[1][0].token_ids) for i in range(20)}
    assert len(others) > 5


async def test_samples_what_rendering_would_not_give_back(tokenizer: ChatTokenizer) -> None:
    recoded = reserialised = 0
    for index, question in enumerate(calculator_prompts(40)):
        messages, generations = await play(tokenizer, question, f"r{index}")
        for generation in generations:
            ids = list(generation.token_ids)
            recoded += tokenizer.encode(tokenizer.decode(ids)) != ids
        said = tokenizer.decode(generations[0].token_ids)
        reserialised += said not in tokenizer.decode(tokenizer.render_prompt(messages[:2]))
    assert recoded
    assert reserialised


@pytest.mark.parametrize("turns", [1, 2, 3, 7])
async def test_samples_as_many_turns_as_asked(tokenizer: ChatTokenizer, turns: int) -> None:
    _, generations = await play(tokenizer, "Calculate (15 + 23) * 4", turns=turns)
    assert len(generations) == turns


async def test_cut_by_max_tokens(tokenizer: ChatTokenizer) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 1 + 2"}]
    generation = await ScriptedPolicy(tokenizer)([], params(messages, max_tokens=4))
    assert len(generation.token_ids) == 4
    assert generation.finish_reason == "length"
    # Whatever a cut turn leaves behind, the next one is sampled without results to build on.
    messages += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "no sum"}]
    assert (await ScriptedPolicy(tokenizer)([], params(messages))).finish_reason == "stop"
    for turns in (None, 5):
        following = params(messages[:2])
        assert (await ScriptedPolicy(tokenizer, turns=turns)([], following)).token_ids


async def test_reports_a_failing_tool(tokenizer: ChatTokenizer) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Calculate 1 / 0"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "Error: Division by zero", "tool_call_id": "c"},
    ]
    generation = await ScriptedPolicy(tokenizer)([], params(messages))
    assert "Error: Division by zero" in tokenizer.decode(generation.token_ids)


@pytest.mark.parametrize("content", ["Hello", "2 ** 3", "(1 + ", "42", None, [{"type": "text", "text": "1 + 1"}]])
async def test_no_question_no_calls(tokenizer: ChatTokenizer, content: Any) -> None:
    generation = await ScriptedPolicy(tokenizer)([], params([{"role": "user", "content": content}]))
    assert "<tool_call>" not in tokenizer.decode(generation.token_ids)


def test_prompts_repeat_by_seed() -> None:
    assert calculator_prompts(50, seed=3) == calculator_prompts(50, seed=3)
    assert calculator_prompts(50, seed=3) != calculator_prompts(50, seed=4)
    assert len(set(calculator_prompts(50))) == 50
