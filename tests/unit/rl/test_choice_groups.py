"""Inference choices as groups and batches."""

from typing import Any

import numpy as np
import pytest

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_rl.choice_groups import RolloutBatch, RolloutMetadata, group_from_response
from rolloutpool_rl.errors import ChoiceRefused, PromptMismatch
from rolloutpool_rl.inference_context import InferenceContext

QUESTION = "What is 2 + 2?"


@pytest.fixture(scope="module")
def context() -> InferenceContext:
    return InferenceContext(load_tokenizer(str(TINY_TOKENIZER)))


def response(context: InferenceContext, *texts: str, **more: Any) -> dict[str, Any]:
    """A chat completion with ids, as vLLM sends it."""
    choices = []
    for text in texts:
        ids = context.tokenizer.encode(text)
        content = [{"token": f"token_id:{token}", "logprob": -0.5} for token in ids]
        choices.append({"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}})
    return {"choices": choices, **more}


def test_a_response_is_a_group(context: InferenceContext) -> None:
    prompt = context.tokenize_prompt(QUESTION).tolist()
    reply = response(context, "The answer is four.", "It is certainly five.", prompt_token_ids=prompt)
    group = group_from_response(context, QUESTION, reply, "sums", "7", [1.0, 0.0])
    assert [rollout.episode_reward for rollout in group.rollouts] == [1.0, 0.0]
    assert {rollout.alignment for rollout in group.rollouts} == {"exact"}
    assert context.tokenizer.decode(group.rollouts[1].response_tokens.tolist()) == "It is certainly five."


def test_the_advantages_of_a_batch_lie_on_its_tokens(context: InferenceContext) -> None:
    groups = [
        group_from_response(
            context, QUESTION, response(context, "The answer is four.", "The answer is five."), "e", "1", r
        )
        for r in ([1.0, 0.0], [0.5, 0.5])
    ]
    batch = RolloutBatch(tuple(groups), RolloutMetadata(weight_step=3))
    gains = batch.advantages(std=None)
    assert [set(gain.tolist()) for gain in gains] == [{0.5}, {-0.5}, {0.0}, {0.0}]
    assert [len(gain) for gain in gains] == [len(rollout.response_tokens) for rollout in batch.rollouts]
    assert {gain.dtype for gain in gains} == {np.dtype(np.float32)}


def test_responses_that_are_no_group(context: InferenceContext) -> None:
    with pytest.raises(ChoiceRefused, match="0 choices, and 1 rewards"):
        group_from_response(context, QUESTION, {"choices": []}, "e", "1", [1.0])
    with pytest.raises(ChoiceRefused, match="1 choices, and 2 rewards"):
        group_from_response(context, QUESTION, response(context, "The answer is four."), "e", "1", [1.0, 0.0])
    reply = response(context, "The answer is four.", prompt_token_ids=[1, 2])
    with pytest.raises(PromptMismatch):
        group_from_response(context, QUESTION, reply, "e", "1", [1.0])
