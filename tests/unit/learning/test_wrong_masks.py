"""The wrong masks are wrong in the way that they are meant to be, and right where nothing drifts."""

import json
from pathlib import Path
from typing import Any

import pytest
from examples.learning.vocabulary import write_tokenizer
from examples.learning.wrong_masks import all_ones, length_difference, shortest
from tests.support.finished_rollouts import rollout

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.tokens.ledger import TokenLedger

ARGUMENTS = {"a": 15, "b": 23}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(TINY)


def two_turns(tokenizer: ChatTokenizer, call: str, answer: str = "It is 38.") -> RolloutResult:
    """A rollout that calls once, in these words, and answers."""
    ledger = TokenLedger()
    question = {"role": "user", "content": "15 + 23?"}
    function = {"name": "add", "arguments": json.dumps(ARGUMENTS)}
    asked: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "callabcde", "type": "function", "function": function}],
    }
    result = {"role": "tool", "name": "add", "tool_call_id": "callabcde", "content": "38"}
    ledger.seed(tokenizer.render_prompt([question]))
    sampled = tokenizer.encode(call + "<|im_end|>")
    ledger.append_sampled(sampled, [-float(i + 1) for i in range(len(sampled))], turn=1)
    ledger.append_glue(tokenizer.render_delta([result], sampled=sampled).glue_ids, turn=1)
    said = tokenizer.encode(f"{answer}<|im_end|>")
    ledger.append_sampled(said, [-100.0 - i for i in range(len(said))], turn=2)
    messages = [question, asked, result, {"role": "assistant", "content": answer}]
    return rollout(*ledger.samples(), messages=[Message.model_validate(message) for message in messages])


def test_it_is_right_where_the_template_writes_what_was_sampled(tokenizer: ChatTokenizer) -> None:
    made = two_turns(tokenizer, '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>')
    (sample,) = made.samples
    held = length_difference(made, sample, tokenizer)
    assert held.response_mask == list(sample.response_mask)
    assert held.response_logprobs == list(sample.response_logprobs)


def test_a_call_without_spaces_shifts_all_that_follows(tokenizer: ChatTokenizer) -> None:
    made = two_turns(tokenizer, '<tool_call>\n{"name":"add","arguments":{"a":15,"b":23}}\n</tool_call>')
    (sample,) = made.samples
    held = length_difference(made, sample, tokenizer)
    # The figures of docs/masks.md: 15 tokens are added, and the difference of lengths is 21.
    assert list(sample.response_mask) == [1] * 21 + [0] * 15 + [1] * 8
    assert held.response_mask == [1] * 21 + [0] * 21 + [1] * 2
    # The answer's first two log-probabilities lie on its last two ids.
    assert held.response_logprobs[-2:] == [-100.0, -101.0]
    assert held.response_ids == sample.response_ids


def test_a_render_that_is_shorter_trains_what_was_not_sampled(tokenizer: ChatTokenizer) -> None:
    made = two_turns(
        tokenizer, '  <tool_call>\n{"name":   "add", "arguments":   {"a":  15, "b":   23}}\n\n</tool_call>'
    )
    (sample,) = made.samples
    held = length_difference(made, sample, tokenizer)
    assert len(held.response_mask) == len(sample.response_mask)
    foreign = [
        i
        for i, (wrong, right) in enumerate(zip(held.response_mask, sample.response_mask, strict=True))
        if wrong > right
    ]
    assert foreign
    assert sum(held.response_mask) < sum(sample.response_mask) + len(foreign)


def test_all_ones_trains_the_tool_too(tokenizer: ChatTokenizer) -> None:
    (sample,) = two_turns(tokenizer, "x").samples
    held = all_ones(sample)
    assert held.response_mask == [1] * len(sample.response_ids)
    assert held.response_logprobs == sample.response_logprobs


def test_a_template_that_writes_no_spaces_trains_itself_and_misses_the_answer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    own = load_tokenizer(str(tmp_path))
    made = two_turns(own, '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>', answer="38")
    (sample,) = made.samples
    held = length_difference(made, sample, own, shortest)
    wrong = [b - a for a, b in zip(sample.response_mask, held.response_mask, strict=True)]
    # A call has three spaces fewer, so three tokens before the answer are trained, and its three tokens are not.
    assert [change for change in wrong if change] == [1, 1, 1, -1, -1, -1]
    assert own.decode([i for i, change in zip(sample.response_ids, wrong, strict=True) if change > 0]) == (
        "<|im_start|>assistant\n"
    )
    assert own.decode([i for i, change in zip(sample.response_ids, wrong, strict=True) if change < 0]) == "38<|im_end|>"
    # The sampler's log-probabilities are shifted alike.
    assert held.response_logprobs[-6:-3] == list(sample.response_logprobs[-3:])
