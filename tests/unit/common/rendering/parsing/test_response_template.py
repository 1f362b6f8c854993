"""A template in the form of transformers: what it finds, and what it takes for a call and is none."""

from typing import Any

import pytest

from rolloutpool_common.rendering.parsing.found import CallStatus, Found
from rolloutpool_common.rendering.parsing.response_template import TemplateParser

TEMPLATE: dict[str, Any] = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>"},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def find(text: str, before: str = "<|im_start|>assistant\n") -> Found:
    return TemplateParser(TEMPLATE).find(text, before=before, tools=[])


def test_content_alone() -> None:
    assert find("It is 38.") == Found("It is 38.")


@pytest.mark.parametrize("end", range(len("<tool_call>"), len(CALL)))
def test_a_call_that_is_cut_is_never_run(end: int) -> None:
    (call,) = find(CALL[:end]).calls
    assert call.status is CallStatus.UNCLOSED


@pytest.mark.parametrize("body", ["add(1)", '{"arguments": {}}', "5", '{"name": "a"'])
def test_a_broken_call_is_told(body: str) -> None:
    (call,) = find(f"<tool_call>{body}</tool_call>").calls
    assert call.status is not CallStatus.OK
    assert call.fault.startswith("Invalid tool call, not run: ")


@pytest.mark.parametrize(
    "template", [{}, {"fields": {}}, {"fields": 5}, {**TEMPLATE, "version": 2}, {**TEMPLATE, "x": 1}]
)
def test_what_is_no_template_is_refused(template: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        TemplateParser(template)
