"""Conversations that stand for a real one: a policy turn that says a sentinel, and messages that say numbered markers.

The sentinel turn has the shape of the real turn (as many calls, the same ids and names, content or none, thoughts or
none), because templates look at these; what it says is one word that occurs nowhere else, so that the place where it
ends is found in any render without knowing the template.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.template import Message

SENTINEL = NONCE + "s"
NAMELESS = NONCE + "n"
"""The name of a tool whose result does not say which tool it was."""
RESULT_ROLES = ("tool", "function")
_MARKER = re.compile(f"{NONCE}m(\\d+)e")


def calls_of(turn: Message) -> list[tuple[str, str]]:
    """(id, name) of each call that a turn makes."""
    return [
        (str(call.get("id", "")), str(call.get("function", {}).get("name", NAMELESS)))
        for call in turn.get("tool_calls") or ()
    ]


def assumed_turn(new: Sequence[Message]) -> dict[str, Any]:
    """The turn that new messages answer, where it is not known: with a call for each result."""
    calls = [
        {
            "id": str(message.get("tool_call_id", "")),
            "type": "function",
            "function": {"name": str(message.get("name", NAMELESS)), "arguments": {"x": "x"}},
        }
        for message in new
        if message.get("role") in RESULT_ROLES
    ]
    return {"role": "assistant", "content": "" if calls else "x", **({"tool_calls": calls} if calls else {})}


def turns(
    turn: Message, calls: Sequence[tuple[str, str]], *, as_text: bool
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The forms of the policy's turn: with the sentinel, and the same without it.

    An answer says the sentinel behind its own words, because these may decide what stands behind the turn. A call has
    it as its arguments, and says it too where the turn says something. Some templates write what a turn says behind its
    calls' results, or write no calls; so the turn with its words is tried, and the turn without them.
    """
    if not calls:
        yield {**turn, "content": f"{turn['content']}{SENTINEL}"}, dict(turn)
        # Words such as an unclosed thought may take with them what stands behind them. The referee has them back.
        yield {**turn, "content": SENTINEL}, dict(turn)
        return
    arguments: Any = {SENTINEL: SENTINEL}
    made = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments},
        }
        for call_id, name in calls
    ]
    silent = {**turn, "content": "", "tool_calls": made}, {**turn, "content": ""}
    spoken = {**turn, "content": f"{turn['content']}{SENTINEL}", "tool_calls": made}, dict(turn)
    yield from (spoken, silent) if turn["content"] else (silent, spoken)


def after_sentinel(text: str) -> str | None:
    """Returns what the template wrote after the last sentinel; None where it left the policy's turn out."""
    at = text.rfind(SENTINEL)
    return None if at < 0 else text[at + len(SENTINEL) :]


def marked(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    """Copies messages with numbered markers as content."""
    return [{**m, "content": _replaced(m["content"], f"{NONCE}m{i}e")} for i, m in enumerate(messages, first)]


def markers_in(text: str) -> list[int]:
    """The numbers of all markers in the text, in order."""
    return [int(number) for number in _MARKER.findall(text)]


def first_marker(text: str) -> int:
    """Offset of the first marker; the text's length where there is none."""
    found = _MARKER.search(text)
    return found.start() if found else len(text)


def _replaced(content: Any, marker: str) -> Any:
    return {"r": marker} if isinstance(content, Mapping) else marker
