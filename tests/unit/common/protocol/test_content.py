"""Which parts of content are text, what is said of the others, and which lists of a tool are content at all."""

from typing import Any

import pytest

from rolloutpool_common.protocol.content import looks_like_parts, part_fault

SECRET = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": SECRET}}
TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (IMAGE, "type image_url; only text is supported"),
        ({"type": "input_text", "text": "a"}, "type input_text; only text is supported"),
        ({"type": "x" * 99}, f"type {'x' * 40}; only text is supported"),
        ({"text": "a"}, "no type; only text is supported"),
        ({"type": 7, "text": "a"}, "no type; only text is supported"),
        ({"type": "text"}, "a part of type text needs `text`"),
        ({"type": "text", "text": 4}, "`text` must be a string"),
        ({"type": "text", "text": None}, "`text` must be a string"),
        ("a", 'not an object (str); only {"type": "text", "text": "..."} is supported'),
        (None, 'not an object (NoneType); only {"type": "text", "text": "..."} is supported'),
    ],
)
def test_any_other_part_is_named_and_not_quoted(part: Any, fault: str) -> None:
    assert part_fault(part) == fault


@pytest.mark.parametrize("value", [[TEXT], (TEXT, IMAGE), [{"type": "image", "data": SECRET}], [{"type": "video"}]])
def test_what_a_tool_returns_as_content(value: Any) -> None:
    assert looks_like_parts(value)


@pytest.mark.parametrize(
    "value", ["text", None, 5, [], [1, 2], [{"type": "file", "path": "a"}], [{"a": 1}], [TEXT, 5], {"type": "text"}]
)
def test_other_values_of_a_tool_are_none(value: Any) -> None:
    assert not looks_like_parts(value)
