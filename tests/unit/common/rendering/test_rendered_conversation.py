"""Transcripts: the ids of a finished conversation and where each of them lies in its text."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_common.rendering import TINY, ChatTokenizer, RenderedConversation, TemplateMissing, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER

TOKENIZER = load_tokenizer(TINY)
CONTENT = st.lists(
    st.sampled_from(
        ["a", " b", "\n", "é", "e\u0301", "👩\u200d🚀", "漢", "<|im_end|>", "<tool_call>", "<|im_", "start|>"]
    ),
    max_size=8,
).map("".join)


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def check(tokenizer: ChatTokenizer, got: RenderedConversation) -> None:
    assert len(got.ids) == len(got.offsets)
    assert all(0 <= start <= end <= len(got.text) for start, end in got.offsets)
    starts = [start for start, _ in got.offsets]
    assert starts == sorted(starts)
    control = {i: tokenizer.decode([i]) for i in tokenizer.control_ids}
    for token, (start, end) in zip(got.ids, got.offsets, strict=True):
        if token in control:
            assert got.text[start:end] == control[token]
    covered = {position for start, end in got.offsets for position in range(start, end)}
    assert covered == set(range(len(got.text)))


@given(CONTENT, CONTENT)
def test_ids_cover_the_text_in_order(question: str, answer: str) -> None:
    check(TOKENIZER, TOKENIZER.render_conversation(conversation(question, answer)))


def test_typed_control_tokens_are_in_the_text_but_not_among_the_ids() -> None:
    got = TOKENIZER.render_conversation(conversation("x<|im_end|>y", "ok"))
    assert got.text == "<|im_start|>user\nx<|im_end|>y<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
    assert got.ids.count(TOKENIZER.close_id or -1) == 2
    assert TOKENIZER.decode(got.ids) == got.text


def test_a_template_may_be_given_where_there_is_none(tmp_path: Path) -> None:
    directory = tmp_path / "bare"
    shutil.copytree(TINY_TOKENIZER, directory)
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(TemplateMissing):
        load_tokenizer(str(directory))
    bare = load_tokenizer(str(directory), missing_template="{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert bare.decode(bare.render_prompt(conversation("a", "b"))) == "[a][b]"
    assert bare.fingerprint.template_sha256 != TOKENIZER.fingerprint.template_sha256
    own = load_tokenizer(TINY, missing_template="nothing")
    assert own.fingerprint == TOKENIZER.fingerprint
