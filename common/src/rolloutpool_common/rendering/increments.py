"""Says what new messages add to the prompt of a trainer that renders history again, counted without the history.

Rendering all of it at each turn costs more with every turn: 440 ms of a rollout of 64 turns. Most templates append, so
the difference of two short prompts is enough:

    added(new) = length([user "x", *new]) - length([user "x"])

Both end with the header after which the policy speaks, so the headers cancel out. For example, a turn of 3 ids and a
result of 9 add 12, after 2 rounds or after 60. For most templates nothing is rendered for that: what they write behind
such a question is proved to be constants and the messages' own words (`proof`).

That the new messages add the same behind any history is a claim about the template, so it is checked against whole
renders (`IncrementTrust`):

1. Only turns of the policy and results of tools are counted so. After a user message, templates drop old thinking.
2. Each shape of new messages (roles, keys, calls) is checked when it is first seen, again at the rounds 2, 4, 8 … of
   the first conversations of a process, and at each 64th use for good. What is not joined is told apart by more: white
   space at edges, and the words by which the template switches.
3. One disagreement, and the template's conversations are counted whole from then on; the log says so once.
4. Where the trainer reports its prompt, that length is what the next increment is added to, so errors never add up.
"""

import logging
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from cachetools import LRUCache

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering.proof.claims import Joint, NewMessage, Proof, TurnShape
from rolloutpool_common.rendering.template import Message

_log = logging.getLogger(__name__)

CHECKS = 3
"""Whole renders that must agree for one shape at one round. Other conversations are not checked there."""
EVERY = 64
"""Each so many uses of a shape, its increment is checked again."""
SHAPES = 1024
"""Shapes whose checks are remembered."""
APPENDED = frozenset({"assistant", "tool"})
"""Roles after which templates leave the earlier text as it is."""
QUESTION = "x"
"""What the user says before the new messages."""
_CALL = {"id", "type", "function"}
_FUNCTION = {"name", "arguments"}


@dataclass(slots=True)
class IncrementShape:
    """A shape of new messages."""

    joint: Joint | None
    """Of what is written behind the question; None where a render tells."""
    uses: int = 0
    agreed: dict[int, int] = field(default_factory=dict)
    """By the rounds of a conversation that are powers of two, how many checks agreed there; by 0, how many at all."""


class Increment(NamedTuple):
    """Holds what new messages are to their template."""

    shape: IncrementShape
    text: str | None
    """What stands behind the question; None where only a render tells."""


class IncrementTrust:
    """How far increments were found right for one template, its arguments and its tools. Thread-safe."""

    def __init__(
        self,
        what: str,
        prove: Callable[[TurnShape], Proof],
        controls: re.Pattern[str],
        words: Sequence[str],
        *,
        tools: bool,
    ) -> None:
        """Nothing is checked yet; `what` names the template in the log.

        `prove` proves what it writes, `controls` finds control strings, and `words` are those by which it switches.
        """
        self._what = what
        self._prove = prove
        self._controls = controls
        self._words = words
        self._tools = tools
        self._lock = Lock()
        self._shapes: LRUCache[Hashable, IncrementShape] = LRUCache(SHAPES)
        self._proved: dict[Hashable, IncrementShape] = {}
        self.opening: int | None = None
        """Ids of the short prompt from which increments are measured; None before the first, or where it has tools."""
        self.broken = False
        """Whether an increment was wrong, so that none is used any more."""

    def find(self, new: Sequence[Message]) -> Increment | None:
        """The shape of new messages, and their text; None where these must be counted with their history."""
        for message in new:
            if message.get("role") not in APPENDED:
                return None
        if not new:
            return None
        form, words = _form(new)
        if form is not None:
            shape = self._proved.get(form)
            if shape is None:
                shape = self._learn(form)
            joined = None if shape.joint is None else shape.joint.join(words)
            if joined is not None:
                return Increment(shape, joined[0])
        with self._lock:
            return Increment(self._shapes.setdefault(_told_apart(new, self._words), IncrementShape(None)), None)

    @property
    def behind_question(self) -> str | None:
        """Returns what stands behind the question where nothing is new; None where that isn't proved."""
        found = self._proved.get(()) or self._learn(())
        joined = None if found.joint is None else found.joint.join(())
        return None if joined is None else joined[0]

    def _learn(self, form: tuple[NewMessage, ...]) -> IncrementShape:
        # Any number of forms can be made up, and reading the template takes milliseconds. So the first ones are kept.
        if len(self._proved) >= SHAPES:
            return IncrementShape(None)
        proof = self._prove(TurnShape(True, 0, False, (), form, system=False, tools=self._tools, asked=True))
        shape = IncrementShape(None if proof.parts is None else Joint(proof, self._controls))
        return self._proved.setdefault(form, shape)

    def needs_check(self, shape: IncrementShape, rounds: int) -> bool:
        """Whether an increment must be compared with a whole render, in a conversation with so many policy turns."""
        shape.uses += 1
        return (
            shape.uses % EVERY == 0
            or shape.agreed.get(0, 0) < CHECKS
            or (rounds & (rounds - 1) == 0 and shape.agreed.get(rounds, 0) < CHECKS)
        )

    def checked(self, shape: IncrementShape, rounds: int, *, agreed: bool) -> None:
        """Notes whether an increment led to the length of the whole render."""
        with self._lock:
            if not agreed and not self.broken:
                self.broken = True
                _log.warning(
                    "%s: the template rewrites earlier messages, so the prompts of trainers that render history "
                    "again are counted whole: this costs more with each turn",
                    self._what,
                )
            for key in {0, rounds} if rounds & (rounds - 1) == 0 else {0}:
                shape.agreed[key] = shape.agreed.get(key, 0) + 1


def _form(new: Sequence[Message]) -> tuple[tuple[NewMessage, ...] | None, list[dict[str, Any]]]:
    """What proofs tell new messages apart by, and the words in them; None where a message has more than words."""
    forms: list[NewMessage] = []
    said: list[dict[str, Any]] = []
    for message in new:
        words: dict[str, Any] = {}
        bare: list[tuple[str, str | None]] = []
        calls, parsed = message.get("tool_calls") or (), 0
        for key, value in message.items():
            if key == "role" or (key == "tool_calls" and value):
                continue
            if value is None or value == "":
                bare.append((key, value))
            elif isinstance(value, str) and "." not in key:
                words[key] = value
            else:
                return None, said
        keys = ("role", *sorted(words))
        for i, call in enumerate(calls):
            function = call.get("function")
            if call.keys() != _CALL or call["type"] != "function" or function.keys() != _FUNCTION:
                return None, said
            arguments = function["arguments"]
            if arguments and isinstance(arguments, dict):
                parsed += 1
            elif not isinstance(arguments, str):
                return None, said
            if not isinstance(call["id"], str) or not isinstance(function["name"], str):
                return None, said
            words |= {f"{i}.id": call["id"], f"{i}.name": function["name"], f"{i}.arguments": arguments}
        if parsed not in (0, len(calls)):
            return None, said
        forms.append(NewMessage(message["role"], keys, len(calls), parsed > 0, tuple(bare)))
        said.append(words)
    return tuple(forms), said


def _told_apart(new: Sequence[Message], words: Sequence[str]) -> Hashable:
    """Returns what a template can tell about new messages beside their text."""
    return tuple(
        (
            message["role"],
            frozenset(key for key, value in message.items() if value is not None),
            tuple(type(call["function"].get("arguments")).__name__ for call in message.get("tool_calls") or ()),
            type(message.get("content")).__name__,
            not (text := text_of(message)),
            text != text.strip(),
            frozenset(word for word in words if word in text),
        )
        for message in new
    )
