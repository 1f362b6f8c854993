"""Messages leave in normal form, keep what they came with, and refuse what the protocol refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.messages import ROLES, TEXT_MESSAGES, Message, ToolCall


def test_every_role_is_known_and_no_other() -> None:
    for role in ROLES:
        assert Message(role=role).role == role
    with pytest.raises(ValidationError) as caught:
        Message(role="robot")
    assert caught.value.errors()[0]["msg"] == (
        "Value error, Invalid role 'robot'. Must be one of: ['assistant', 'function', 'system', 'tool', 'user']"
    )


@pytest.mark.parametrize(
    "fields",
    [{"content": 8}, {"content": ["text"]}, {"tool_call_id": "x" * 257}, {"tool_calls": {}}, {"role": None}],
)
def test_what_is_no_message(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "x" * 257},
        {"id": None},
        {"type": "retrieval"},
        {"function": {"name": "", "arguments": "{}"}},
        {"function": {"name": "x" * 257, "arguments": "{}"}},
        {"function": {"name": "f"}},
        {"function": {"name": "f", "arguments": None}},
        {"function": {"name": "f", "arguments": [1]}},
    ],
)
def test_what_is_no_tool_call(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ToolCall.model_validate({"id": "c", "function": {"name": "f", "arguments": "{}"}, **fields})


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def faults_of(*messages: Any) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        TEXT_MESSAGES.validate_python(list(messages))
    assert "AAAA" not in str(caught.value)
    return [(fault["loc"], fault["msg"]) for fault in caught.value.errors()]


def test_a_message_that_comes_in_has_parts_of_text_alone() -> None:
    text = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
    (message,) = TEXT_MESSAGES.validate_python([text])
    assert message.wire()["content"] == text["content"]
    content = [text["content"][0], IMAGE, "a"]
    assert faults_of(text, {"role": "user", "content": content}) == [
        ((1, "content", 1), "type image_url; only text is supported"),
        ((1, "content", 2), 'not an object (str); only {"type": "text", "text": "..."} is supported'),
    ]
    # A message that was stored is read as it is.
    assert Message.model_validate({"role": "user", "content": [IMAGE]}).content == [IMAGE]


def test_a_part_hides_no_other_fault_of_its_message() -> None:
    found = faults_of({"role": "robot", "content": [IMAGE], "tool_call_id": "x" * 257})
    assert [place for place, _ in found] == [(0, "content", 0), (0, "role"), (0, "tool_call_id")]
    assert faults_of({"role": "user", "content": 8})[0][0] == (0, "content", "str")
