"""Records from choices: ids as the server names them, prompts as the template renders them, or a refusal."""

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.golden_numbers import CHOICES
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import TINY, ChatTokenizer, TemplateMissing
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_rl.errors import (
    ChoiceIncomplete,
    ChoiceRefused,
    PromptMismatch,
    ShapeMismatch,
    TokenUnknown,
)
from rolloutpool_rl.inference_context import (
    InferenceContext,
    PlainFormattingWarning,
    ShortReplyWarning,
    ZeroLogprobsWarning,
    rewards_from_spans,
)

PROMPT = "What is 2+2?"
TEXT = "The sum of 2 and 2 is 4."

# llama3 is not among the tokenizers that the tests lay out.
PROMPTS = {name: case for name, case in CHOICES["tokenize_prompt"].items() if name != "llama3"}


@pytest.fixture
def context(tiny: ChatTokenizer) -> InferenceContext:
    return InferenceContext(tiny)


def reply(ids: list[int], logprobs: list[float] | None = None, **changes: Any) -> dict[str, Any]:
    """A choice of a server that names ids in `token_id:<n>` form."""
    logprobs = [-0.5] * len(ids) if logprobs is None else logprobs
    content = [{"token": f"token_id:{i}", "logprob": p} for i, p in zip(ids, logprobs, strict=True)]
    return {"logprobs": {"content": content}, **changes}


def as_object(value: Any) -> Any:
    """The same with attributes, as the openai package has it."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_object(item) for key, item in value.items()})
    return [as_object(item) for item in value] if isinstance(value, list) else value


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", PROMPTS)
def test_golden_prompts(name: str) -> None:
    case = PROMPTS[name]
    context = InferenceContext(real_tokenizer(name), template_kwargs=case["template_kwargs"])
    got = context.tokenize_prompt(case["prompt"])
    assert got.tolist() == case["expected"]
    assert got.dtype == case["dtype"]
    assert got.tolist() != case["plain_encode"]


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("form", ["content_bpe", "content_token_id"])
@pytest.mark.parametrize("wire", [dict, as_object], ids=["dict", "object"])
@pytest.mark.parametrize("name", CHOICES["choice"])
def test_golden_choices(name: str, form: str, wire: Any) -> None:
    case = CHOICES["choice"][name]
    context = InferenceContext(real_tokenizer(name))
    choice = wire({"logprobs": {"content": case[form]}})
    ids, logprobs = context.response_tokens_from_choice(choice), context.logprobs_from_choice(choice)
    assert ids.tolist() == case["expected_ids"]
    assert logprobs == pytest.approx(case["expected_logprobs"])
    assert [ids.dtype.name, logprobs.dtype.name] == ["int32", "float32"]


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", CHOICES["choice"])
def test_golden_decoded_text_is_refused(name: str) -> None:
    context = InferenceContext(real_tokenizer(name))
    with pytest.raises(TokenUnknown, match=r"13 of (22|19) tokens, the first at position 1,"):
        context.response_tokens_from_choice({"logprobs": {"content": CHOICES["choice"][name]["content_decoded"]}})


@pytest.mark.parametrize("wire", [dict, as_object], ids=["dict", "object"])
def test_a_record(context: InferenceContext, wire: Any) -> None:
    ids = context.tokenizer.encode(TEXT)
    got = context.create_rollout_from_choice(PROMPT, wire(reply(ids)), "sums", "ex_1", 1.0)
    assert got.prompt_tokens.tolist() == context.tokenizer.render_prompt([{"role": "user", "content": PROMPT}])
    assert got.response_tokens.tolist() == ids
    assert got.response_mask.tolist() == [1] * len(ids)
    assert got.response_logprobs.tolist() == [-0.5] * len(ids)
    assert got.token_rewards.tolist() == [1.0] * len(ids)
    assert (got.env_name, got.env_example_id, got.episode_reward) == ("sums", "ex_1", 1.0)
    for name, dtype in CHOICES["rollout"].items():
        if name.endswith(("tokens", "logprobs", "rewards")):
            assert getattr(got, name).dtype == dtype.split()[0]
    assert got.alignment is Alignment.UNVERIFIED


def test_ids_win_over_names(context: InferenceContext) -> None:
    ids = context.tokenizer.encode(TEXT)
    choice = reply([0] * len(ids), token_ids=ids)
    assert context.response_tokens_from_choice(choice).tolist() == ids


def test_an_echoed_prompt_proves_the_record(context: InferenceContext) -> None:
    ids, prompt = context.tokenizer.encode(TEXT), context.tokenize_prompt(PROMPT).tolist()
    given = context.create_rollout_from_choice(PROMPT, reply(ids), "e", "x", 0.0, prompt_token_ids=prompt)
    found = context.create_rollout_from_choice(PROMPT, reply(ids, prompt_token_ids=prompt), "e", "x", 0.0)
    assert given.alignment is found.alignment is Alignment.EXACT


def test_a_server_without_the_template_is_found_out(context: InferenceContext) -> None:
    bare = context.tokenizer.encode(PROMPT)
    with pytest.raises(PromptMismatch, match="from position 0 on"):
        context.create_rollout_from_choice(PROMPT, reply([5] * 9), "e", "x", 0.0, prompt_token_ids=bare)


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({}, ChoiceIncomplete),
        ({"logprobs": None}, ChoiceIncomplete),
        ({"logprobs": {"content": []}}, ChoiceIncomplete),
        ({"token_ids": [], "logprobs": {"content": [{"token": "a", "logprob": 0.0}]}}, ChoiceIncomplete),
        ({"token_ids": [1, 2, 3]}, ChoiceIncomplete),
        (reply([5, 6], token_ids=[5]), ChoiceRefused),
        (reply([5], [float("nan")]), ChoiceRefused),
        (reply([5], [None]), ChoiceRefused),  # type: ignore[list-item]
        (reply([5], ["high"]), ChoiceRefused),  # type: ignore[list-item]
        (reply([10**6]), TokenUnknown),
        (reply([5], token_ids=[-1]), ChoiceRefused),
        (reply([5], token_ids=["5"]), ChoiceRefused),
        (reply([5], token_ids=[True]), ChoiceRefused),
        (reply([10**12]), ChoiceRefused),
        ({"logprobs": {"content": [{"token": "token_id:5", "logprob": 0.0}, {"token": "a"}]}}, TokenUnknown),
        ({"logprobs": {"content": [{"token": "token_id:-5", "logprob": 0.0}]}}, TokenUnknown),
        ({"logprobs": {"content": [{"token": None, "logprob": 0.0}]}}, TokenUnknown),
    ],
)
def test_replies_that_prove_nothing(context: InferenceContext, choice: Any, error: type[ChoiceRefused]) -> None:
    with pytest.raises(error) as caught:
        context.create_rollout_from_choice(PROMPT, choice, "e", "x", 0.0)
    assert type(caught.value) is error
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


def test_decoded_text_that_happens_to_be_in_the_vocabulary(context: InferenceContext) -> None:
    # The piece "é" stands for the byte E9; the text "é" is another token.
    assert context.tokenizer.token_id("é") is not None
    choice: dict[str, Any] = {
        "logprobs": {"content": [{"token": "é", "logprob": -1.0}]},
        "message": {"role": "assistant", "content": "é"},
    }
    with pytest.raises(TokenUnknown, match="do not spell the message"):
        context.response_tokens_from_choice(choice)
    choice["message"]["content"] = None
    assert len(context.response_tokens_from_choice(choice)) == 1


def test_refusals_hold_no_text(context: InferenceContext) -> None:
    choice = {"logprobs": {"content": [{"token": " secret words", "logprob": -1.0}]}}
    with pytest.raises(TokenUnknown) as caught:
        context.response_tokens_from_choice(choice)
    assert "secret" not in str(caught.value)


def test_short_replies_warn_and_are_counted(context: InferenceContext) -> None:
    with pytest.warns(ShortReplyWarning, match="ex_7"):
        context.create_rollout_from_choice(PROMPT, reply([5] * 4), "e", "ex_7", 1.0)
    context.create_rollout_from_choice(PROMPT, reply([5] * 5), "e", "ex_8", 1.0)
    assert context.warning_counts == {"ShortReplyWarning": 1}


def test_zero_logprobs_warn_and_are_counted(context: InferenceContext) -> None:
    for _ in range(2):
        with pytest.warns(ZeroLogprobsWarning):
            context.create_rollout_from_choice(PROMPT, reply([5] * 5, [0.0] * 5), "e", "x", 1.0)
    context.create_rollout_from_choice(PROMPT, reply([5] * 5, [0.0] * 4 + [-1.0]), "e", "x", 1.0)
    assert context.warning_counts == {"ZeroLogprobsWarning": 2}


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(context: InferenceContext, prompt: Any) -> None:
    with pytest.raises(ChoiceRefused, match="prompt is empty"):
        context.tokenize_prompt(prompt)


@pytest.fixture
def bare_directory(tmp_path: Path) -> Path:
    shutil.copytree(TINY_TOKENIZER, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    return tmp_path / "bare"


def test_no_template_is_refused(bare_directory: Path) -> None:
    with pytest.raises(TemplateMissing):
        InferenceContext.load(str(bare_directory))


def test_plain_formatting_on_request(bare_directory: Path) -> None:
    with pytest.warns(PlainFormattingWarning):
        context = InferenceContext.load(str(bare_directory), on_missing_template="role_content")
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "<|im_end|>"}]
    ids = context.tokenize_prompt(messages)
    assert context.tokenizer.decode(ids.tolist()) == "system: Add.\nuser: <|im_end|>"
    assert not context.tokenizer.control_ids.intersection(ids.tolist())
    got = context.create_rollout_from_choice(messages, reply([5] * 9), "e", "x", 1.0)
    assert got.alignment is Alignment.UNVERIFIED
    assert context.warning_counts == {"PlainFormattingWarning": 1}


def test_a_template_is_not_overruled() -> None:
    context = InferenceContext.load(TINY, on_missing_template="role_content")
    assert context.tokenize_prompt(PROMPT).tolist() == InferenceContext.load(TINY).tokenize_prompt(PROMPT).tolist()
    assert not context.warning_counts


def test_rewards_from_spans() -> None:
    got = rewards_from_spans([1, 1, 0, 1, 1], [(0, 3, 0.5), (1, 5, 0.25), (4, 5, -1.0)])
    assert got.tolist() == [0.5, 0.75, 0.0, 0.25, -0.75]
    assert got.dtype == np.float32
    assert rewards_from_spans([1, 0], []).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("span", [(0, 0, 1.0), (2, 1, 1.0), (-1, 2, 1.0), (0, 4, 1.0)])
def test_spans_lie_in_the_response(span: tuple[int, int, float]) -> None:
    with pytest.raises(ShapeMismatch, match="outside a response of 3"):
        rewards_from_spans([1, 1, 1], [span])


def test_a_reward_that_nothing_earned_is_refused() -> None:
    with pytest.raises(ChoiceRefused, match=r"\[1, 2\)"):
        rewards_from_spans([1, 0, 1], [(1, 2, 1.0)])
