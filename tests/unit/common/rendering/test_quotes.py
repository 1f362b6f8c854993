"""Errors of templates hold no text of messages."""

import time

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import RenderFailed
from rolloutpool_common.rendering.quotes import without_quotes

SECRET = "My social security number is 078-05-1120, and my name is Ada."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"ValueError: {SECRET}", "ValueError: …"),
        (f"bad: {SECRET} (4)", "bad: … (4)"),
        (f"bad: '{SECRET[:30]}'", "bad: '…'"),
        (f"bad: '{SECRET[20:]}', twice '{SECRET[20:]}'", "bad: '…', twice '…'"),
        ("roles must alternate", "roles must alternate"),
    ],
)
def test_what_is_quoted_is_replaced(text: str, shown: str) -> None:
    assert without_quotes(text, [{"role": "user", "content": SECRET}], "") == shown


def test_short_messages_are_replaced_as_a_whole() -> None:
    assert without_quotes("bad: 'I am ill'", [{"role": "user", "content": "I am ill"}], "") == "bad: '…'"


def test_the_template_s_own_words_stay() -> None:
    said = [{"role": "user", "content": "Conversation roles must alternate, it said. Why?"}]
    reason = "TemplateError: Conversation roles must alternate"
    assert without_quotes(reason, said, "{{ raise_exception('Conversation roles must alternate') }}") == reason


def test_parts_arguments_and_results_are_messages_too() -> None:
    call = {"function": {"name": "f", "arguments": {"query": SECRET}}}
    for message in (
        {"role": "user", "content": [{"type": "text", "text": SECRET}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": {"x": SECRET}},
    ):
        assert SECRET[:15] not in without_quotes(f"bad: {SECRET}", [message], "")


def test_a_render_that_fails_quotes_nothing(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{% for m in messages %}{{ raise_exception('cannot take ' + m.content) }}{% endfor %}")
    with pytest.raises(RenderFailed) as caught:
        tokenizer.render_prompt([{"role": "user", "content": SECRET}])
    assert "cannot take …" in caught.value.reason
    assert "security" not in caught.value.reason


def test_ten_megabytes_of_messages_take_a_moment() -> None:
    said = [{"role": "user", "content": "ab cd ef " * 1_100_000}]
    start = time.process_time()
    without_quotes("x" * 300, said, "")
    without_quotes("cd ef ab " * 33, said, "")
    assert time.process_time() - start < 5
