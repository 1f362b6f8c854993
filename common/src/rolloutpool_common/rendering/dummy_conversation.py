"""The dummy conversation after which new messages are rendered, and the marks that show what became of them.

It has a user turn and a policy's turn, whatever the real history was, so that rendering costs the same at any length.
The policy's turn says the *sentinel*, which no other text contains: it shows where the turn ends. When a template is
probed, each new message says a numbered *marker* instead of its content: the markers show where messages went.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.template import Message

__all__ = ["NAMELESS", "PLAIN_FORM", "SENTINEL", "DummyForm", "forms_for", "has_results", "markers_in", "with_markers"]

SENTINEL = NONCE + "s"
"""What the policy says in the dummy conversation."""
NAMELESS = NONCE + "n"
"""The name of a call whose result has none; a template that prints it needs the real name."""

_RESULT_ROLES = ("tool", "function")
_MARKER = re.compile(f"{NONCE}m(\\d+)e")


@dataclass(frozen=True, slots=True)
class DummyForm:
    """How the policy's turn is written; templates differ in what they accept."""

    arguments_as_text: bool
    """Whether a call's arguments are JSON text instead of an object."""
    silent: bool
    """Whether the turn makes its calls without any content."""

    def conversation(self, new: Sequence[Message]) -> list[dict[str, Any]]:
        """Makes the two turns; the policy's turn makes a call for each tool result among the `new` messages."""
        arguments: Any = {SENTINEL: SENTINEL}
        if self.arguments_as_text:
            arguments = json.dumps(arguments)
        assistant: dict[str, Any] = {"role": "assistant", "content": "" if self.silent else SENTINEL}
        calls = [
            {
                "id": message.get("tool_call_id", ""),
                "type": "function",
                "function": {"name": message.get("name", NAMELESS), "arguments": arguments},
            }
            for message in new
            if message["role"] in _RESULT_ROLES
        ]
        if calls:
            assistant["tool_calls"] = calls
        return [{"role": "user", "content": "x"}, assistant]


PLAIN_FORM = DummyForm(arguments_as_text=False, silent=False)


def has_results(messages: Sequence[Message]) -> bool:
    """Whether there are tool results, for which the policy's turn must make calls."""
    return any(message["role"] in _RESULT_ROLES for message in messages)


def forms_for(messages: Sequence[Message]) -> tuple[DummyForm, ...]:
    """Returns the forms to try, best first.

    The silent forms are for templates that write what a turn says after the results of its calls.
    """
    if not has_results(messages):
        return (PLAIN_FORM,)
    return tuple(DummyForm(as_text, silent) for silent in (False, True) for as_text in (False, True))


def with_markers(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies the messages with content of the same shape that says the marker 0, 1, 2 … once."""
    return [{**m, "content": _replaced(m["content"], f"{NONCE}m{i}e")} for i, m in enumerate(messages)]


def markers_in(text: str) -> list[int]:
    """Returns the numbers of the markers in a text, in order."""
    return [int(number) for number in _MARKER.findall(text)]


def _replaced(content: Any, marker: str) -> Any:
    if isinstance(content, Mapping):
        return {"r": marker}
    if isinstance(content, list | tuple):
        rest = [{**part, "text": ""} if isinstance(part, Mapping) else "" for part in content[1:]]
        first = content[0] if content else None
        return [{**first, "text": marker} if isinstance(first, Mapping) else marker, *rest]
    return marker
