"""Conversations that stand for a real one: a policy turn that says a sentinel, and messages that say numbered markers.

The sentinel turn has the shape of the real turn (as many calls, the same ids and names, content or none, thoughts or
none), because templates look at these; what it says is one word that occurs nowhere else, so that the place where it
ends is found in any render without knowing the template.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.template import Message

__all__ = [
    "NAMELESS",
    "RESULT_ROLES",
    "SENTINEL",
    "after_sentinel",
    "calls_of",
    "content_kind",
    "marked",
    "markers_in",
    "texts_beside",
    "turn",
]

SENTINEL = NONCE + "s"
NAMELESS = NONCE + "n"
"""The name of a tool whose result does not say which tool it was."""
RESULT_ROLES = ("tool", "function")
_NO_TEXTS = frozenset({"role", "content", "name", "tool_call_id"})
_MARKER = re.compile(f"{NONCE}m(\\d+)e")


def calls_of(history: Sequence[Message], new: Sequence[Message]) -> list[tuple[str, str]]:
    """(id, name) of each call that the last turn of `history` made; of each result in `new` where it is unknown."""
    last = history[-1] if history and history[-1].get("role") == "assistant" else {}
    made = [
        (str(call.get("id", "")), str(call.get("function", {}).get("name", NAMELESS)))
        for call in last.get("tool_calls") or ()
    ]
    return made or [
        (str(message.get("tool_call_id", "")), str(message.get("name", NAMELESS)))
        for message in new
        if message.get("role") in RESULT_ROLES
    ]


def texts_beside(history: Sequence[Message]) -> tuple[str, ...]:
    """The keys of the last turn's texts beside its content, such as `reasoning_content`."""
    last = history[-1] if history and history[-1].get("role") == "assistant" else {}
    return tuple(sorted(k for k, value in last.items() if value and isinstance(value, str) and k not in _NO_TEXTS))


def turn(
    calls: Sequence[tuple[str, str]],
    *,
    arguments_as_text: bool = False,
    silent: bool = False,
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """The policy's turn; `silent` makes its calls without saying anything, `beside` are the keys of its other texts."""
    arguments: Any = {SENTINEL: SENTINEL}
    message: dict[str, Any] = {"role": "assistant", "content": "" if silent and calls else SENTINEL}
    message |= dict.fromkeys(beside, SENTINEL)
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments) if arguments_as_text else arguments},
            }
            for call_id, name in calls
        ]
    return message


def after_sentinel(text: str) -> str | None:
    """Returns what the template wrote after the last sentinel; None where it left the policy's turn out."""
    at = text.rfind(SENTINEL)
    return None if at < 0 else text[at + len(SENTINEL) :]


def marked(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    """Copies messages with numbered markers as content.

    Args:
        messages: What to copy; roles, keys and kinds of content stay.
        first: The number of the first marker.
    """
    return [{**m, "content": _replaced(m["content"], f"{NONCE}m{i}e")} for i, m in enumerate(messages, first)]


def markers_in(text: str) -> list[int]:
    """The numbers of all markers in the text, in order."""
    return [int(number) for number in _MARKER.findall(text)]


def first_marker(text: str) -> int:
    """Offset of the first marker; the text's length where there is none."""
    found = _MARKER.search(text)
    return found.start() if found else len(text)


def content_kind(content: Any) -> str:
    """What a template can tell about content beside its text."""
    if isinstance(content, list | tuple):
        return "list:" + ",".join(str(part.get("type")) if isinstance(part, Mapping) else "" for part in content)
    return type(content).__name__


def _replaced(content: Any, marker: str) -> Any:
    if isinstance(content, Mapping):
        return {"r": marker}
    if isinstance(content, list | tuple):
        rest = [{**part, "text": ""} if isinstance(part, Mapping) else "" for part in content[1:]]
        return [{**content[0], "text": marker} if content and isinstance(content[0], Mapping) else marker, *rest]
    return marker
