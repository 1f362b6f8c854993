"""What new messages add to the prompt of a trainer that renders history again, counted without the history.

Rendering all of it at each turn costs more with every turn: 440 ms of a rollout of 64 turns. Most templates append, so
the difference of two short renders is enough:

    added(new) = length(render([user "x", *new])) - length(render([user "x"]))

Both end with the header after which the policy speaks, so the headers cancel out. For example, a turn of 3 ids and a
result of 9 add 12, after 2 rounds or after 60.

That is a claim about the template, so it is checked against whole renders (`IncrementTrust`):

1. Only turns of the policy and results of tools are counted so. After a user message, templates drop old thinking.
2. Each shape of new messages (roles, calls, thinking, switch words) is checked when it is first seen, again at the
   rounds 2, 4, 8 … of the first conversations of a process, and at each 64th use for good.
3. One disagreement, and the template's conversations are counted whole from then on; the log says so once.
4. Where the trainer reports its prompt, that length is what the next increment is added to, so errors never add up.
"""

import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering.template import Message

_log = logging.getLogger(__name__)

CHECKS = 3
"""Whole renders that must agree for one shape at one round. Other conversations are not checked there."""
EVERY = 64
"""Each so many uses of a shape, its increment is checked again."""
SHAPES = 1024
"""Shapes and rounds whose checks are remembered."""
APPENDED = frozenset({"assistant", "tool"})
"""Roles after which templates leave the earlier text as it is."""

IncrementShape = tuple[Any, ...]


def increment_shape(new: Sequence[Message], words: Sequence[str]) -> IncrementShape | None:
    """What a template can tell about new messages beside their text."""
    if not new or any(message.get("role") not in APPENDED for message in new):
        return None
    return tuple(_form(message, words) for message in new)


def _form(message: Message, words: Sequence[str]) -> tuple[Any, ...]:
    content = message.get("content")
    text = text_of(message)
    return (
        message["role"],
        frozenset(key for key, value in message.items() if value is not None),
        len(message.get("tool_calls") or ()),
        type(content).__name__,
        not text,
        text != text.strip(),
        frozenset(word for word in words if word in text),
    )


class IncrementTrust:
    """How far increments were found right for one template, its arguments and its tools. Thread-safe."""

    def __init__(self, what: str) -> None:
        """Nothing is checked yet; `what` names the template in the log."""
        self._what = what
        self._lock = Lock()
        self._agreed: LRUCache[tuple[IncrementShape, int], int] = LRUCache(SHAPES)
        self._uses: LRUCache[IncrementShape, int] = LRUCache(SHAPES)
        self.opening: int | None = None
        """Ids of the short prompt from which increments are measured; None before the first, or where it has tools."""
        self.broken = False
        """Whether an increment was wrong, so that none is used any more."""

    def needs_check(self, shape: IncrementShape, rounds: int) -> bool:
        """Whether this increment must be compared with a whole render."""
        with self._lock:
            uses = self._uses[shape] = self._uses.get(shape, 0) + 1
            return uses % EVERY == 0 or any(self._agreed.get(key, 0) < CHECKS for key in _keys(shape, rounds))

    def checked(self, shape: IncrementShape, rounds: int, *, agreed: bool) -> None:
        """Notes what a comparison has shown."""
        with self._lock:
            if not agreed:
                if not self.broken:
                    _log.warning(
                        "%s: the template rewrites earlier messages, so the prompts of trainers that render history "
                        "again are counted whole: this costs more with each turn",
                        self._what,
                    )
                self.broken = True
            for key in _keys(shape, rounds):
                self._agreed[key] = self._agreed.get(key, 0) + 1


def _keys(shape: IncrementShape, rounds: int) -> list[tuple[IncrementShape, int]]:
    doubling = rounds > 0 and rounds & (rounds - 1) == 0
    return [(shape, 0), (shape, rounds)] if doubling else [(shape, 0)]


def arguments_key(kwargs: Mapping[str, Any] | None) -> str:
    """Writes template arguments as a key."""
    return repr(sorted((kwargs or {}).items()))
