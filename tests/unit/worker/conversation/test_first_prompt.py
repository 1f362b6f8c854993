"""`FirstPrompt`: what the trainer's first prompt shows, beside our render of it."""

from typing import Any

import pytest

from rolloutpool_common.rendering import ChatTokenizer, RerenderCounter, rerender
from rolloutpool_common.rendering.increments import CHECKS
from rolloutpool_worker.conversation.first_prompt import FirstPrompt

QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]
LATER = [*QUESTION, {"role": "assistant", "content": "38"}, {"role": "user", "content": "Sure?"}]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {}}},
    }
]


def first(tokenizer: ChatTokenizer, echoed: int | None, messages: list[dict[str, Any]] = QUESTION) -> FirstPrompt:
    return FirstPrompt(tokenizer, messages, echoed, tools=TOOLS, template_kwargs=None)


def test_what_neither_explains_is_added_to_each_later_count(tokenizer: ChatTokenizer) -> None:
    plain = len(rerender(tokenizer, QUESTION))
    prompt = first(tokenizer, plain + 7)
    assert (prompt.tools, prompt.offset) == (None, 7)
    assert prompt.count(LATER) == len(rerender(tokenizer, LATER)) + 7


def test_messages_that_the_template_refuses_have_no_count(tokenizer: ChatTokenizer) -> None:
    prompt = first(tokenizer, 40, [{"role": "zebra", "content": "x"}])
    assert (prompt.tools, prompt.offset) == (None, 0)
    assert prompt.count(LATER) is None


def test_a_later_prompt_is_counted_from_the_trainers_own_first_one(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once whole renders have agreed, even the first prompt is not rendered."""
    answered = [*QUESTION, {"role": "assistant", "content": "38"}, {"role": "tool", "content": "38", "name": "add"}]
    length = len(rerender(tokenizer, QUESTION, tools=TOOLS))
    for _ in range(CHECKS):
        prompt = first(tokenizer, length)
        assert prompt.count_new(answered) is None
        assert prompt.count(answered) == len(rerender(tokenizer, answered, tools=TOOLS))
    monkeypatch.setattr(RerenderCounter, "count", None)
    # Also where the trainer's prompt has ids that we cannot explain.
    for more in (0, 7):
        prompt = first(tokenizer, length + more)
        assert prompt.count_new(answered) == len(rerender(tokenizer, answered, tools=TOOLS)) + more
        assert not prompt.looked


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "call00000", "name": "add", "content": "38"}
SHOTS = [*QUESTION, calling('{"a":15}'), RESULT]
"""A first prompt that shows the policy a call, written without the space that the template puts there."""
PARSED_SHOTS = [*QUESTION, calling({"a": 15}), RESULT]


@pytest.mark.parametrize("shown", [TOOLS, None])
@pytest.mark.parametrize("parsed", [True, False])
def test_calls_in_the_first_messages_do_not_hide_whether_tools_are_shown(
    tokenizer: ChatTokenizer, shown: list[dict[str, Any]] | None, parsed: bool
) -> None:
    given = PARSED_SHOTS if parsed else SHOTS
    prompt = first(tokenizer, len(rerender(tokenizer, given, tools=shown)), SHOTS)
    assert (prompt.tools, prompt.offset) == (shown, 0)
