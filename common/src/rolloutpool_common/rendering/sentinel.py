"""Conversations that stand for a real one: a policy turn that says a sentinel, and messages that say numbered markers.

The sentinel turn has the shape of the real turn (as many calls, the same ids and names, content or none, thoughts or
none), because templates look at these; what it says is one word that occurs nowhere else, so that the place where it
ends is found in any render without knowing the template.

A template may take the arguments of calls as an object or as text, print what a turn says beside its calls in front of
them, behind their results or not at all, and keep or drop words that look like an unclosed thought. So several forms of
one turn are tried (`forms`), the real turn's own first.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.errors import AssistantAppended, TemplateRefused
from rolloutpool_common.rendering.template import Message, Tools, normalise

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


@dataclass(frozen=True, slots=True)
class Continuation:
    """Holds what a delta is rendered of."""

    new: Sequence[Message]
    """What follows the turn."""
    history: Sequence[Message]
    """All messages up to the turn, that turn included."""
    tools: Tools | None
    """What the policy was shown that it may call."""
    kwargs: Mapping[str, Any]
    """Further variables of the template."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One conversation in one form of the turn."""

    past: Sequence[Message]
    said: Message
    """The turn with the """
    turn: Message
    """The turn without it."""
    new: Sequence[Message]
    tools: Tools | None
    kwargs: Mapping[str, Any]

    @property
    def calls(self) -> bool:
        """Whether the turn makes calls."""
        return bool(self.turn.get("tool_calls"))


def forms(codec: Codec, continuation: Continuation) -> Iterator[Asked]:
    """The forms of a conversation: arguments as an object, then as text; the turn with its words and without."""
    new = new_messages_of(continuation.new)
    past = normalise(continuation.history)
    turn = past.pop() if past and past[-1]["role"] == "assistant" else assumed_turn(new)
    # Templates print ids and names of calls behind the sentinel too, and those may be anything that was sampled.
    calls = [(_guarded(call_id, codec), _guarded(name, codec)) for call_id, name in calls_of(turn)]
    # Without calls in the turn, too: earlier turns may have some. DeepSeek V3 was refused there.
    for as_text in (False, True):
        earlier = [_with_text_arguments(message) for message in past] if as_text else past
        for said, real in turns(turn, calls, as_text=as_text):
            shown = _with_text_arguments(real) if as_text else real
            yield Asked(earlier, said, shown, new, continuation.tools or None, continuation.kwargs)


def new_messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies new messages in normal form, with an id for each result: templates print or check ids."""
    if not messages:
        raise TemplateRefused("There are no new messages to append.")
    if any(message.get("role") == "assistant" for message in messages):
        raise AssistantAppended()
    return [
        # Nine letters or digits, because some templates want that.
        {**m, "tool_call_id": f"call{i:05d}"} if m.get("role") == "tool" and "tool_call_id" not in m else dict(m)
        for i, m in enumerate(normalise(messages))
    ]


def _guarded(text: str, codec: Codec) -> str:
    return text if text == NAMELESS else str(codec.escaper.value(text))


def _with_text_arguments(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    changed = []
    for call in calls:
        arguments = call["function"].get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        changed.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": changed}
