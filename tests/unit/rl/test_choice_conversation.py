"""Conversations of many turns from choices: exact ids, exact masks, forks."""

from typing import Any

import pytest

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.errors import AssistantAppended
from rolloutpool_rl.choice_conversation import ChoiceConversation
from rolloutpool_rl.errors import ChoiceRefused, PromptMismatch
from rolloutpool_rl.inference_context import InferenceContext

PROMPT = "What is 15 + 23?"
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call_0", "content": "38"}
CALL = '<tool_call>\n{"arguments":{"a":15,"b":23},"name":"add"}\n</tool_call><|im_end|>'
ANSWER = "The sum is 38.<|im_end|>"


@pytest.fixture
def conversation(tiny: ChatTokenizer) -> ChoiceConversation:
    return ChoiceConversation(InferenceContext(tiny), PROMPT)


def reply(ids: list[int], **fields: Any) -> dict[str, Any]:
    content = [{"token": f"token_id:{i}", "logprob": -0.25} for i in ids]
    return {"logprobs": {"content": content}, **fields}


def test_two_turns(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    call, answer = tiny.encode(CALL), tiny.encode(ANSWER)
    prompt = conversation.prompt_token_ids
    conversation.add_choice(reply(call))
    conversation.add_messages([RESULT])
    glue = conversation.prompt_token_ids[len(prompt) + len(call) :]
    conversation.add_choice(reply(answer))
    (got,) = conversation.rollouts("sums", "ex_1", 2.0)
    assert got.prompt_tokens.tolist() == prompt
    assert got.response_tokens.tolist() == call + glue + answer
    mask = [1] * len(call) + [0] * len(glue) + [1] * len(answer)
    assert got.response_mask.tolist() == mask
    assert got.response_logprobs.tolist() == [-0.25 * m for m in mask]
    assert got.token_rewards.tolist() == [2.0 * m for m in mask]
    assert tiny.decode(glue) == (
        "\n<|im_start|>tool\n<tool_response>\n38\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert {got.prompt_tokens.dtype.name, got.response_tokens.dtype.name, got.response_mask.dtype.name} == {"int32"}
    assert {got.response_logprobs.dtype.name, got.token_rewards.dtype.name} == {"float32"}
    assert (got.alignment, got.episode_reward) == (Alignment.UNVERIFIED, 2.0)


def test_a_turn_without_its_close_token_gets_one_that_is_not_trained(
    tiny: ChatTokenizer, conversation: ChoiceConversation
) -> None:
    cut = tiny.encode("The sum of these is")
    conversation.add_choice(reply(cut))
    conversation.add_messages([{"role": "user", "content": "Go on."}])
    conversation.add_choice(reply(tiny.encode(ANSWER)))
    (got,) = conversation.rollouts("e", "x", 0.0)
    assert got.response_tokens[len(cut)] == tiny.close_id
    assert got.response_mask[len(cut)] == 0


def test_echoes_prove_the_record(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    conversation.add_choice(reply(tiny.encode(CALL)), prompt_token_ids=conversation.prompt_token_ids)
    conversation.add_messages([RESULT])
    conversation.add_choice(reply(tiny.encode(ANSWER), prompt_token_ids=conversation.prompt_token_ids))
    assert [r.alignment for r in conversation.rollouts("e", "x", 0.0)] == [Alignment.EXACT]


def test_a_server_that_renders_anew_forks(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    call, answer = tiny.encode(CALL), tiny.encode(ANSWER)
    first = conversation.prompt_token_ids
    conversation.add_choice(reply(call), prompt_token_ids=first)
    conversation.add_messages([RESULT])
    parsed = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 15, "b": 23}}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": "", "tool_calls": [parsed]},
        RESULT,
    ]
    second = tiny.render_prompt(history)
    assert second != conversation.prompt_token_ids
    conversation.add_choice(reply(answer), prompt_token_ids=second)
    one, two = conversation.rollouts("e", "x", 1.0)
    assert (one.prompt_tokens.tolist(), one.response_tokens.tolist()) == (first, call)
    assert (two.prompt_tokens.tolist(), two.response_tokens.tolist()) == (second, answer)
    assert one.alignment is two.alignment is Alignment.FORKED
    assert all(r.response_mask.all() for r in (one, two))


def test_another_first_prompt_is_refused(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    with pytest.raises(PromptMismatch):
        conversation.add_choice(reply(tiny.encode(ANSWER)), prompt_token_ids=tiny.encode(PROMPT))


def test_turns_alternate(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    with pytest.raises(ChoiceRefused, match="no reply yet"):
        conversation.rollouts("e", "x", 0.0)
    with pytest.raises(ChoiceRefused, match="follow a reply"):
        conversation.add_messages([RESULT])
    conversation.add_choice(reply(tiny.encode(ANSWER)))
    with pytest.raises(ChoiceRefused, match="spoken already"):
        conversation.add_choice(reply(tiny.encode(ANSWER)))
    with pytest.raises(AssistantAppended):
        conversation.add_messages([{"role": "assistant", "content": "Words in its mouth."}])


def test_a_refused_reply_changes_nothing(tiny: ChatTokenizer, conversation: ChoiceConversation) -> None:
    before = conversation.prompt_token_ids
    with pytest.raises(ChoiceRefused):
        conversation.add_choice({"logprobs": None})
    assert conversation.prompt_token_ids == before
    conversation.add_choice(reply(tiny.encode(ANSWER)))
    assert len(conversation.rollouts("e", "x", 0.0)) == 1
