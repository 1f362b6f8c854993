"""A text is found as it is written, in any case of its letters; what is found says where it is."""

import pytest
from tests.support.finished_rollouts import BYTES, forked, sample

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_trainer.viewer.text_matches import (
    TextFinder,
    TextMatch,
    matches_in_messages,
    matches_in_tokens,
    texts_of_message,
)


def found(sought: str, text: str, *, match_case: bool = False) -> list[str]:
    return [text[start:end] for start, end in TextFinder(sought, match_case=match_case).spans(text)]


@pytest.mark.parametrize(
    ("sought", "text", "expected"),
    [
        ("needle", "a Needle, NEEDLE and needles", ["Needle", "NEEDLE", "needle"]),
        ("über", "ÜBER Über", ["ÜBER", "Über"]),
        ("ΟΔΟΣ", "οδος οδοσ ΟΔΟΣΙ", ["οδος", "οδοσ", "ΟΔΟΣ"]),
        ("straße", "STRAẞE, STRASSE", ["STRAẞE"]),
        ("日本", "in 日本🙂 日本", ["日本", "日本"]),
        ("🙂", "a 🙂🙂", ["🙂", "🙂"]),
        # Two letters that look alike to people and differ in case alone: the sign of Kelvin is a K.
        ("k", "\u212a K", ["\u212a", "K"]),
        ("aa", "aaaaa", ["aa", "aa"]),
        ("a\nb", "A\nB", ["A\nB"]),
        ("absent", "present", []),
        ("long", "", []),
        # An accent of its own is not looked through.
        ("é", "e\u0301", []),
    ],
)
def test_letters_of_both_cases_are_the_same(sought: str, text: str, expected: list[str]) -> None:
    assert found(sought, text) == expected


@pytest.mark.parametrize(
    "literal", [".*", "a|b", "(", "[a-z]+", "\\d", "^", "$", "\\", "a{2}", "?", "<script>", '"', "%s"]
)
def test_nothing_is_a_pattern(literal: str) -> None:
    assert found(literal, f"aab{literal}ü7") == [literal]
    assert found(literal, "zz xyz") == []


def test_each_text_of_a_message_is_searched_in_the_order_in_which_it_is_drawn() -> None:
    call = ToolCall(id="c", function=FunctionCall(name="search", arguments='{"q": "needle"}'))
    typed = ToolCall(id="d", function=FunctionCall(name="add", arguments={"needle": [1, "ü"]}))
    parts = [{"type": "image_url", "image_url": {"url": "needle"}}, {"type": "text", "text": "a needle"}, {"text": 7}]
    messages = [
        Message(role="user", content=parts),
        Message(role="assistant", content="needle", reasoning_content="Needle?", tool_calls=[call, typed]),
        Message(role="tool", content=None, tool_call_id="c"),
    ]
    assert list(texts_of_message(messages[1])) == [
        ("thinking", "Needle?"),
        ("content", "needle"),
        ("call", 'search {"q": "needle"}'),
        ("call", 'add {"needle":[1,"ü"]}'),
    ]
    matches = list(matches_in_messages(TextFinder("needle"), messages))
    assert [(match.message, match.number, match.role, match.kind) for match in matches] == [
        (0, 0, "user", "content"),
        (1, 0, "assistant", "thinking"),
        (1, 1, "assistant", "content"),
        (1, 2, "assistant", "call"),
        (1, 3, "assistant", "call"),
    ]
    assert matches[1] == TextMatch("thinking", "", "Needle", "?", message=1, role="assistant", number=0)


def test_a_match_in_tokens_says_which_sample_token_and_turn() -> None:
    result = forked()
    (match,) = matches_in_tokens(TextFinder("42\n"), result.samples, BYTES.bytes_of)
    prompt = bytes(result.samples[1].prompt_ids)
    assert (match.kind, match.sample, match.place, match.turn) == ("tokens", 1, prompt.index(b"42"), None)
    (match,) = matches_in_tokens(TextFinder("SURE"), result.samples, BYTES.bytes_of)
    everything = prompt + bytes(result.samples[1].response_ids)
    assert (match.sample, match.place, match.turn) == (1, everything.index(b"sure"), 2)
    # What both samples begin with is found once.
    assert [one.sample for one in matches_in_tokens(TextFinder("<user>ask"), result.samples, BYTES.bytes_of)] == [0]


def test_bytes_that_are_no_text_are_passed_over() -> None:
    (one,) = [sample("p", ("sampled", "ab", 1))]
    broken = one.model_copy(update={"response_ids": [0xE6, 0x97, *b"needle", 0xF0, 10**9, -5]})
    (match,) = matches_in_tokens(TextFinder("needle"), [broken], BYTES.bytes_of)
    assert match.place == 3
