"""Calls that are JSON."""

from typing import Any

import pytest

from rolloutpool_common.rendering.parsing.found import CallStatus, broken, call_of, decode, usable_name

SPAN = (3, 9)


@pytest.mark.parametrize(
    ("value", "name", "arguments"),
    [
        ({"name": "add", "arguments": {"ä": 1}}, "add", '{"ä": 1}'),
        ({"name": "add", "parameters": {"a": 1}}, "add", '{"a": 1}'),
        ({"name": "add", "arguments": " as it is"}, "add", " as it is"),
        ({"type": "function", "function": {"name": "add", "arguments": {}}}, "add", "{}"),
        ({"name": "add", "arguments": None}, "add", "null"),
    ],
)
def test_a_call(value: Any, name: str, arguments: str) -> None:
    call = call_of(value, "raw", SPAN)
    assert (call.start, call.end, call.name, call.arguments, call.status, call.fault) == (
        *SPAN,
        name,
        arguments,
        CallStatus.OK,
        "",
    )


def test_a_broken_call_has_the_name_that_can_be_read() -> None:
    call = broken('{"name" : "add", "arguments": {', SPAN, "why")
    assert (call.name, call.arguments, call.fault) == (
        "add",
        '{"name" : "add", "arguments": {',
        "Invalid tool call, not run: why",
    )
    assert broken("", SPAN, "").name == "invalid_tool_call"


def test_names() -> None:
    assert usable_name("x" * 256)
    assert not any(map(usable_name, ["", "x" * 257, "\ud800", None, 5]))


def test_json_that_is_nested_too_deeply_is_an_error_like_any_other() -> None:
    with pytest.raises(ValueError, match="nested"):
        decode("[" * 100_000)
