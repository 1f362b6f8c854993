"""Messages in the forms in which the referee renders them: with marks, with numbers, with arguments as text."""

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

MARK = "wYyWq"
"""In the turn's own words."""
SYSTEM = "sQqSys"
"""In the system message."""
DESCRIPTION = "dQqDes"
"""Of each tool."""
BESIDE = "bQqBes"
"""In what a turn says beside its calls."""
CALLED = "aQqArg"
"""In the place of arguments."""


class NothingToMark(Exception):
    """The turn has no words of its own."""


def with_mark(turn: Message, in_content: bool, at: int | None) -> Message:
    """The turn with a mark in its own words: at their end, or at a place in its content."""
    calls = turn.get("tool_calls")
    if not calls or in_content:
        words = turn.get("content") or ""
        cut = len(words) if at is None else at
        return {**turn, "content": words[:cut] + MARK + words[cut:]}
    *others, last = calls
    function = last["function"]
    arguments = function["arguments"]
    as_text = isinstance(arguments, str)
    value = json.loads(arguments) if as_text else dict(arguments)
    if not value:
        raise NothingToMark("nothing can be marked in a call without arguments")
    key = list(value)[-1]
    value[key] = f"{value[key]}{MARK}"
    marked = json.dumps(value, ensure_ascii=False) if as_text else value
    return {**turn, "tool_calls": [*others, {**last, "function": {**function, "arguments": marked}}]}


def with_arguments(message: Message, as_text: bool) -> Message:
    """The message with the arguments of its calls as objects, or as text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = []
    for call in calls:
        given = call["function"]["arguments"]
        value = json.loads(given) if isinstance(given, str) else given
        if as_text:
            value = json.dumps(value, ensure_ascii=False)
        changed.append({**call, "function": {**call["function"], "arguments": value}})
    return {**message, "tool_calls": changed}


def joined(message: Message) -> Message:
    """Content in parts means its joined text, and no content means none."""
    content = message.get("content")
    if content is None:
        return {**message, "content": ""}
    if isinstance(content, list):
        return {**message, "content": "".join(part["text"] for part in content)}
    return message


def numbered(new: Sequence[Message]) -> list[Message]:
    texts = [f"pX{i}Xp" for i in range(len(new))]
    return [
        {**m, "content": {"r": text} if isinstance(m["content"], dict) else text}
        for m, text in zip(new, texts, strict=True)
    ]


def described(tools: Sequence[Message] | None) -> list[Message] | None:
    if not tools:
        return None
    return [{**t, "function": {**t["function"], "description": DESCRIPTION}} for t in tools]


def with_system_mark(message: Message) -> Message:
    if message["role"] not in ("system", "developer"):
        return message
    return {**message, "content": f"{message['content']}{SYSTEM}"}


def with_beside_marks(turn: Message, in_content: bool) -> Message:
    """A turn with calls, what it says beside them marked; if the mark is to stand there, the arguments are instead."""
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    if in_content:
        arguments = json.dumps({"z": CALLED}) if isinstance(calls[0]["function"]["arguments"], str) else {"z": CALLED}
        return {**turn, "tool_calls": [{**c, "function": {**c["function"], "arguments": arguments}} for c in calls]}
    beside = {k: f"{turn[k]}{BESIDE}" for k in ("content", "reasoning_content") if turn.get(k)}
    return {**turn, **beside}


def outline(messages: Sequence[Message]) -> list[Any]:
    """The roles, keys and kinds of messages, and what a template may ask of an empty text."""
    return [
        [m["role"], sorted(m), type(m["content"]).__name__, not m["content"], len(m.get("tool_calls") or ())]
        for m in messages
    ]
