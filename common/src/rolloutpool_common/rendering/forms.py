"""The forms in which a conversation can be rendered so that the policy's turn says the sentinel.

A template may take the arguments of calls as an object or as text, print what a turn says beside its calls in front of
them, behind their results or not at all, and keep or drop words that look like an unclosed thought. So several forms of
one turn are tried, the real turn's own first.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.errors import AssistantAppended, TemplateRefused
from rolloutpool_common.rendering.template import Message, normalise


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a delta is rendered of."""

    new: Sequence[Message]
    """What follows the turn."""
    history: Sequence[Message]
    """All messages up to the turn, that turn included."""
    tools: Sequence[Mapping[str, Any]] | None
    """What the policy was shown that it may call."""
    kwargs: Mapping[str, Any]
    """Further variables of the template."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One conversation in one form of the turn."""

    past: Sequence[Message]
    said: Message
    """The turn with the sentinel."""
    turn: Message
    """The turn without it."""
    new: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]

    @property
    def calls(self) -> bool:
        """Whether the turn makes calls."""
        return bool(self.turn.get("tool_calls"))


def forms(codec: Codec, continuation: Continuation) -> Iterator[Asked]:
    """The forms of a conversation: arguments as an object, then as text; the turn with its words and without."""
    new = new_messages_of(continuation.new)
    past = normalise(continuation.history)
    turn = past.pop() if past and past[-1]["role"] == "assistant" else sentinel.assumed_turn(new)
    # Templates print ids and names of calls behind the sentinel too, and those may be anything that was sampled.
    calls = [(_guarded(call_id, codec), _guarded(name, codec)) for call_id, name in sentinel.calls_of(turn)]
    # Without calls in the turn, too: earlier turns may have some. DeepSeek V3 was refused there.
    for as_text in (False, True):
        earlier = [_with_text_arguments(message) for message in past] if as_text else past
        for said, real in sentinel.turns(turn, calls, as_text=as_text):
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
    return text if text == sentinel.NAMELESS else str(codec.escaper.value(text))


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
