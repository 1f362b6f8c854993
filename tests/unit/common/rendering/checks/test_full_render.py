"""Where the independent render cuts: by the template's own text, with nothing of the pool's renderer."""

from dataclasses import replace

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.checks.constructs import ConstructCase, SampledEnd, call_id
from rolloutpool_common.rendering.checks.exactness import full_render_of
from rolloutpool_common.rendering.checks.full_render import NoOracle

USER = {"role": "user", "content": "giraffe"}
NEXT = {"role": "user", "content": "heron"}
RESULT = {"role": "tool", "name": "weigh", "tool_call_id": call_id(0), "content": "38"}
ANSWER = ConstructCase((USER,), (NEXT,))
CALL = ConstructCase((USER,), (RESULT,), calls=1, tools=True)
HEADER = "<|im_start|>user\nheron<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("end", "sampled", "text"),
    [
        (SampledEnd.WHOLE, "quail<|im_end|>", "\n" + HEADER),
        (SampledEnd.SPACE, "quail<|im_end|>\n", HEADER),
        (SampledEnd.WITHHELD, "quail", "<|im_end|>\n" + HEADER),
        (SampledEnd.CUT, "quail", "<|im_end|>\n" + HEADER),
        (SampledEnd.OTHER, "quail<|endoftext|>", "\n" + HEADER),
    ],
)
def test_the_cut_of_an_answer(tiny: ChatTokenizer, end: SampledEnd, sampled: str, text: str) -> None:
    expected = full_render_of(tiny).expected(replace(ANSWER, end=end))
    assert (expected.sampled, expected.text, expected.lost) == (sampled, text, "")
    assert expected.ids == tiny.encode(text)
    assert expected.sampled_ids == tiny.encode(sampled)


@pytest.mark.parametrize(
    ("end", "sampled", "begins"),
    [
        (SampledEnd.WHOLE, "</tool_call><|im_end|>", "\n<|im_start|>"),
        (SampledEnd.WITHHELD, "</tool_call>", "<|im_end|>\n<|im_start|>"),
        (SampledEnd.CUT, '"animal": "quail', "<|im_end|>\n<|im_start|>"),
    ],
)
def test_the_cut_of_a_call(tiny: ChatTokenizer, end: SampledEnd, sampled: str, begins: str) -> None:
    expected = full_render_of(tiny).expected(replace(CALL, end=end))
    if end is SampledEnd.CUT:  # what closes the call is the policy's, so it is in neither text
        assert expected.sampled.endswith(sampled + '"}}\n</tool_call>') or expected.sampled.endswith(sampled)
    else:
        assert expected.sampled.endswith(sampled)
    assert expected.text.startswith(begins)
    assert "38" in expected.text


def test_a_first_prompt_is_the_whole_render(tiny: ChatTokenizer) -> None:
    expected = full_render_of(tiny).expected(ConstructCase((USER,)))
    assert expected.text == "<|im_start|>user\ngiraffe<|im_end|>\n<|im_start|>assistant\n"
    assert expected.ids == tiny.encode(expected.text)


def test_a_template_that_raises_has_no_oracle(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{{ raise_exception('never') }}")
    with pytest.raises(NoOracle, match="never"):
        full_render_of(tokenizer).expected(ConstructCase((USER,)))


@pytest.mark.real_tokenizer
def test_what_moves_is_not_in_the_text_to_compare_with() -> None:
    """Mistral's template writes system message and tools in front of the last user message, wherever that is."""
    full = full_render_of(real_tokenizer("mistral_nemo"))
    system = {"role": "system", "content": "zebra"}
    case = ConstructCase((system, USER), (NEXT,), tools=True)
    whole = full.text([system, USER, {"role": "assistant", "content": "quail"}, NEXT])
    assert "zebra" in whole[whole.index("quail") :]
    assert full.expected(case).text == "[INST]heron[/INST]"
