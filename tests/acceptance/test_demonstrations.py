"""Recorded conversations come back with the ids that transformers itself renders, and mask 1 on the assistant's."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import DemonstrationRefused, Demonstrations, FinishedRollout, LocalPool, serve_callback

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": CITY}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]


def call(city: str, name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "weather", "arguments": {"city": city}}}


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Ulm and Bonn?"},
    {"role": "assistant", "content": "I ask.", "tool_calls": [call("Ulm", "abcdefgh1"), call("Bonn", "abcdefgh2")]},
    {"role": "tool", "tool_call_id": "abcdefgh1", "content": "rain <|im_end|>"},
    {"role": "tool", "tool_call_id": "abcdefgh2", "content": "sun"},
    {"role": "assistant", "content": "Rain in Ulm, sun in Bonn."},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "Any time."},
]
PLAIN = [message for message in TALK if message["role"] != "tool" and "tool_calls" not in message][1:]


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=1, flower=False, door=True) as started:
        yield started


def played(pool: LocalPool, tokenizer: ChatTokenizer, *talks: Any, tools: Any = None) -> list[FinishedRollout]:
    demonstrations = Demonstrations(talks, tokenizer, tools=tools)
    with pool.client() as client, serve_callback(demonstrations.app(), [0]) as trainer:
        defaults = {"tokenizer_name": tokenizer.name}
        batch = client.submit(demonstrations.rollouts, defaults=defaults, trainer=trainer.urls)
        demonstrations.play(batch)
        return sorted(batch.results(timeout=60), key=lambda result: result.index)


def said(result: FinishedRollout, tokenizer: ChatTokenizer) -> list[str]:
    """The texts that are trained."""
    (sample,) = result.samples
    runs = [segment for segment in sample.segments if segment.kind == "sampled"]
    assert {segment.policy_version for segment in runs} == {"demonstration"}
    assert sum(sample.response_mask) == sum(segment.n for segment in runs)
    return [tokenizer.decode(sample.response_ids[segment.start : segment.start + segment.n]) for segment in runs]


def test_they_are_what_transformers_renders(pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    short = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    first, second, open_end = played(pool, tokenizer, TALK, short, [*short, *short[:1]], tools=TOOLS)
    for result, messages in ((first, TALK), (second, short), (open_end, short)):
        assert (result.status, result.alignment, result.num_tool_calls) == ("completed", "exact", 0)
        (sample,) = result.samples
        ids = [*sample.prompt_ids, *sample.response_ids]
        # A typed control token stays text here, and is one in transformers' own render.
        told = [{**one, "content": str(one["content"]).replace("<|im_end|>", "")} for one in messages]
        text = tokenizer.decode(ids).replace("rain <|im_end|>", "rain ")
        assert tokenizer.reference.apply_chat_template(told, tools=TOOLS, tokenize=False) == text + "\n"
    assert said(second, tokenizer) == said(open_end, tokenizer) == ["Hello!<|im_end|>"]
    assert said(first, tokenizer)[1:] == ["Rain in Ulm, sun in Bonn.<|im_end|>", "Any time.<|im_end|>"]
    assert "zero_logprobs" in first.warnings


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("family", ["qwen2_5", "llama3_1", "deepseek_v3", "gemma3"])
def test_ids_are_those_of_transformers_for_real_tokenizers(pool: LocalPool, family: str) -> None:
    tokenizer = real_tokenizer(family)
    (result,) = played(pool, tokenizer, PLAIN)
    (sample,) = result.samples
    ids = [*sample.prompt_ids, *sample.response_ids]
    expected = tokenizer.reference.apply_chat_template(PLAIN, tokenize=True, return_dict=False)
    assert ids == expected[: len(ids)]
    assert len(expected) - len(ids) <= 1


def test_what_cannot_be_played_is_refused_before_anything_runs(tokenizer: ChatTokenizer) -> None:
    ask, answer = TALK[1], {"role": "assistant", "content": "x"}
    broken: list[tuple[list[dict[str, Any]], str]] = [
        ([], "must have a prompt"),
        ([ask], "must have a prompt"),
        ([answer], "must have a prompt"),
        ([ask, answer, answer], "message 2 is the assistant's, and so is the one before it"),
        ([ask, answer | {"content": 7}], "content must be a string"),
        ([ask, answer | {"tool_calls": [{"id": "c", "function": {"name": "", "arguments": {}}}]}], "tool_calls"),
        ([{"content": "no role"}, answer], "refused the roles"),
    ]
    for talk, reason in broken:
        with pytest.raises(DemonstrationRefused, match=f"conversation 1: .*{reason}"):
            Demonstrations([[ask, answer], talk], tokenizer)


@pytest.mark.real_tokenizer
def test_a_template_that_drops_calls_in_silence_is_refused() -> None:
    with pytest.raises(DemonstrationRefused, match="leaves out what message 2 says: 'weather'"):
        Demonstrations([TALK], real_tokenizer("llama3_1"), tools=TOOLS)


def test_a_talk_that_fails_is_no_sample_and_the_others_are_played(pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    short = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    demonstrations = Demonstrations([short, short], tokenizer)
    with pool.client() as client, serve_callback(demonstrations.app(), [0]) as trainer:
        rollouts = demonstrations.rollouts
        rollouts[0]["harness"] |= {"max_mb": 1e-6}
        batch = client.submit(rollouts, defaults={"tokenizer_name": TINY}, trainer=trainer.urls)
        with pytest.raises(DemonstrationRefused, match="conversation 0, message 1: the door answered 4"):
            demonstrations.play(batch)
        first, second = sorted(batch.results(timeout=60), key=lambda result: result.index)
    assert (first.status, second.status) == ("failed", "completed")
    assert first.failure is not None
    assert first.failure.kind == "infra"
