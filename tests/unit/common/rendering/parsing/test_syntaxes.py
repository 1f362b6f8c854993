"""Each syntax finds its family's calls, and tells broken ones from unclosed ones."""

import json
from typing import Any

import pytest

from rolloutpool_common.rendering.parsing.found import CallStatus, FoundCall
from rolloutpool_common.rendering.parsing.syntaxes import SYNTAXES

BY_NAME = {syntax.name: syntax for syntax in SYNTAXES}
BEGIN, END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁end\uff5c>"
SEPARATOR = "<\uff5ctool▁sep\uff5c>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "deep": {"type": "boolean"}},
            },
        },
    }
]


def find(name: str, text: str) -> list[FoundCall]:
    return BY_NAME[name].find(text, TOOLS)


@pytest.mark.parametrize(
    ("syntax", "text", "calls"),
    [
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', [("add", {"a": 1})]),
        ("hermes", '<tool_call>{"name":"add"}</tool_call>', [("add", {})]),
        ("hermes", '<tool_call>{"name":"a","arguments":"{\\"x\\": 1}"}</tool_call>', [("a", {"x": 1})]),
        (
            "hermes",
            'x<tool_call>{"name":"a"}</tool_call>y<tool_call>{"name":"b"}</tool_call>z',
            [("a", {}), ("b", {})],
        ),
        ("qwen_xml", "<tool_call>\n<function=add>\n</function>\n</tool_call>", [("add", {})]),
        (
            "qwen_xml",
            "<tool_call>\n<function=find>\n<parameter=q>\n12\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
            "<parameter=deep>\ntrue\n</parameter>\n<parameter=new>\n[1]\n</parameter>\n</function>\n</tool_call>",
            [("find", {"q": "12", "n": 3, "deep": True, "new": [1]})],
        ),
        (
            "qwen_xml",
            "<tool_call><function=find><parameter=q>\nline\n\nline\n</parameter></function></tool_call>",
            [("find", {"q": "line\n\nline"})],
        ),
        (
            "glm",
            "<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>",
            [("find", {"q": "12", "n": 3})],
        ),
        ("glm", "<tool_call>now\n</tool_call>", [("now", {})]),
        ("deepseek", f'{BEGIN}function{SEPARATOR}add\n```json\n{{"a": 1}}\n```{END}', [("add", {"a": 1})]),
        ("deepseek", f'{BEGIN}add{SEPARATOR}{{"a": 1}}{END}', [("add", {"a": 1})]),
        (
            "mistral",
            'Well. [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
            [("add", {"a": 1})],
        ),
        ("mistral", '[TOOL_CALLS] [{"name": "a"}, {"name": "b", "arguments": {"x": 2}}]', [("a", {}), ("b", {"x": 2})]),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}', [("add", {"a": 1})]),
        ("mistral", '[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}', [("add", {"a": 1}), ("b", {})]),
        ("llama_json", '{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
        ("llama_json", ' \n{"type": "function", "name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
        ("llama_json", '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b"}', [("a", {}), ("b", {})]),
    ],
)
def test_calls_are_found(syntax: str, text: str, calls: list[tuple[str, Any]]) -> None:
    found = find(syntax, text)
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert {call.status for call in found} == {CallStatus.OK}
    assert all(0 <= call.start < call.end <= len(text) for call in found)


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("hermes", "It is 38."),
        ("hermes", '{"name": "add", "arguments": {}}'),
        ("hermes", "</tool_call>"),
        ("qwen_xml", "<function=add></function>"),
        ("deepseek", "<\uff5ctool▁calls▁begin\uff5c>"),
        ("mistral", '[{"name": "add"}]'),
        ("llama_json", 'The call is {"name": "add"}'),
        ("llama_json", '{"answer": 38}'),
        ("llama_json", '[{"name": "add"}]'),
        ("llama_json", ""),
    ],
)
def test_other_texts_have_no_calls(syntax: str, text: str) -> None:
    assert find(syntax, text) == []


@pytest.mark.parametrize(
    ("syntax", "text", "name"),
    [
        ("hermes", "<tool_call>add(1, 2)</tool_call>", "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', "add"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": ""}</tool_call>', "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": "%s"}</tool_call>' % ("x" * 257), "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": 5}</tool_call>', "invalid_tool_call"),
        ("hermes", "<tool_call>[]</tool_call>", "invalid_tool_call"),
        ("hermes", "<tool_call></tool_call>", "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', "invalid_tool_call"),
        ("hermes", '<tool_call>{"name": "a", "arguments": "\\ud800"}</tool_call>', "a"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "invalid_tool_call"),
        ("qwen_xml", '<tool_call>{"name": "add"}</tool_call>', "add"),
        ("qwen_xml", "<tool_call><function=></function></tool_call>", "invalid_tool_call"),
        ("glm", '<tool_call>{"name": "add"}</tool_call>', "add"),
        ("glm", "<tool_call></tool_call>", "invalid_tool_call"),
        ("deepseek", f"{BEGIN}add{END}", "invalid_tool_call"),
        ("deepseek", f"{BEGIN}add{SEPARATOR}{{a}}{END}", "invalid_tool_call"),
        ("mistral", "[TOOL_CALLS][5]", "invalid_tool_call"),
        ("llama_json", '{"parameters": {}}', "invalid_tool_call"),
    ],
)
def test_what_is_no_call_is_found_as_one_that_cannot_be_run(syntax: str, text: str, name: str) -> None:
    (call,) = find(syntax, text)
    assert (call.name, call.status) == (name, CallStatus.INVALID)
    assert call.fault.startswith("Invalid tool call, not run: ")
    assert len(call.fault) < 300


@pytest.mark.parametrize(
    ("syntax", "whole"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
        ("qwen_xml", "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>"),
        ("glm", "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        ("deepseek", f'{BEGIN}add{SEPARATOR}{{"a": 1}}{END}'),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'),
        ("llama_json", '{"name": "add", "parameters": {"a": 1}}'),
    ],
)
def test_a_call_that_is_cut_anywhere_is_never_run(syntax: str, whole: str) -> None:
    for end in range(len(whole)):
        assert all(call.status is not CallStatus.OK for call in find(syntax, whole[:end]))
    (call,) = find(syntax, whole)
    assert call.status is CallStatus.OK


@pytest.mark.parametrize("syntax", BY_NAME)
def test_long_nonsense_takes_no_time(syntax: str) -> None:
    for piece in ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", '{"name":', BEGIN, "<parameter=", "<arg_key>", "\n"):
        found = find(syntax, piece * 20_000)
        assert len(found) <= 20_000
