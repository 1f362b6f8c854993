"""The question that a proof answers, what it says, and the text that is joined as it says.

A `TurnShape` is the shape of a turn's end; a `Proof` says what the text behind it is made of.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from rolloutpool_common.rendering.control_tokens import NONCE


class NewMessage(NamedTuple):
    """Holds what is known of a new message."""

    role: str
    keys: tuple[str, ...]
    """Of its texts, sorted, `role` among them."""
    calls: int = 0
    """Calls that it makes. Of each, `0.id`, `0.name` and `0.arguments` are words."""
    parsed: bool = False
    """The arguments of its calls are tables that are not empty, and no texts."""
    bare: tuple[tuple[str, str | None], ...] = ()
    """Its other keys, with values that are no words: empty texts and nulls."""


@dataclass(frozen=True, slots=True)
class TurnShape:
    """Holds what is known of a conversation: its policy turn and its new messages.

    At least one message stands before them, and behind a system message one more. The first message is a system
    message, or its role is neither `system` nor `developer`. The turn and the new messages have no other keys than
    those that are named here.
    """

    says: bool
    """The turn's content, a text, is not empty."""
    calls: int
    """Calls that the turn makes."""
    as_text: bool
    """The template is given the arguments of calls as JSON text."""
    beside: tuple[str, ...]
    """Keys of the turn's other texts, such as `reasoning_content`."""
    new: tuple[NewMessage, ...]
    system: bool
    """The first message is a system message."""
    tools: bool
    """Tools are shown. What they say is not known."""
    spoken: bool = False
    """The content has the sentinel although it may be empty, because the template prints no calls."""
    asked: bool = False
    """A question stands in the place of the turn: a user who says one letter, and the sentinel."""


@dataclass(frozen=True, slots=True)
class Word:
    """A text of a new message, as the template prints it."""

    message: int
    """Which of the new messages."""
    key: str
    """Which of its texts."""

    def write(self, text: str) -> str:
        """Returns that text as the template prints it."""
        return text


@dataclass(frozen=True, slots=True)
class TableWord:
    """A table of a new message. Only as JSON it can be a part of a text."""

    message: int
    key: str


@dataclass(frozen=True, slots=True)
class JsonWord:
    """A text or a table of a new message within JSON. The quotes around a text are constants."""

    message: int
    """Which of the new messages."""
    key: str
    """Which of its words."""
    ascii: bool
    """Whether letters beyond ASCII are written as escapes."""
    table: bool = False

    def write(self, word: Any) -> str:
        """Returns that word as the template prints it."""
        written = json.dumps(word, ensure_ascii=self.ascii)
        return written if self.table else written[1:-1]


class Source(StrEnum):
    """Says what a value may depend on."""

    EARLIER = "earlier messages"
    """Messages before the turn, but for a leading system message."""
    POSITION = "the number of messages"
    SYSTEM = "the system message"
    TURN = "the turn's own words"
    """What the policy said, and ids and names of its calls. Such a value may hold the sentinel."""
    NEW = "the new messages' words"
    TOOLS = "the tools"
    CLOCK = "the time"


@dataclass(frozen=True, slots=True)
class Reason:
    """A place of the template that makes the text depend on something."""

    line: int
    construct: str
    """What happens there, and the template's own text of that line."""
    sources: frozenset[Source]


@dataclass(frozen=True, slots=True)
class Proof:
    """Holds what is proved of the text behind the sentinel, wherever the template renders the conversation at all."""

    parts: tuple[str | Word | JsonWord, ...] | None
    """These joined are the text, if `guard` lets all texts of the new messages pass. None where that isn't proved, and
    where these texts, or the turn's own, decide whether the template raises an error."""
    guard: frozenset[str]
    """What no text of a new message may hold. Besides, none may be empty."""
    trimmed: frozenset[Word]
    """Texts that may not begin or end with white space either, because the template trims them somewhere."""
    independent: bool
    """For any words, no earlier message and no number of messages is in the text."""
    reads: frozenset[Source]
    """For any words, what the text may depend on. All there is where nothing is proved."""
    reasons: tuple[Reason, ...]
    """Why `parts` is None, or `independent` is false."""


class Joint:
    """Puts texts of one shape together, from constants and words of messages.

    The proof holds for words without the literals that the template looks for, that are not empty and, where it trims
    them, have no white space at their edges; all words must be such, because a template may compare what it does not
    print, such as a tool's name. And the control strings of the text must be those of the constants. Else a word holds
    one, makes one with what stands beside it, or makes one where it is written as JSON.
    """

    def __init__(self, proof: Proof, controls: re.Pattern[str]) -> None:
        """`controls` finds control strings. Nothing can be put together where the proof names no parts."""
        self.parts = proof.parts
        constants = [part for part in proof.parts or () if isinstance(part, str)]
        self._pattern = controls
        self._trimmed = proof.trimmed
        self._controls = [control for constant in constants for control in controls.findall(constant)]
        self._guard = re.compile("|".join(map(re.escape, (NONCE, *sorted(proof.guard)))))

    def join(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """The text, and the part of it before the first message's content; None for words that the proof excludes."""
        if self.parts is None:
            return None
        for number, message in enumerate(messages):
            for key, word in message.items():
                # Templates can't look into a table without the proof's notice.
                if key == "role" or isinstance(word, dict):
                    continue
                if not word or self._guard.search(word):
                    return None
                if (word[0].isspace() or word[-1].isspace()) and Word(number, key) in self._trimmed:
                    return None
        pieces: list[str] = []
        start = None
        for part in self.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            if start is None and part.key == "content":
                start = "".join(pieces)
            pieces.append(part.write(messages[part.message][part.key]))
        text = "".join(pieces)
        if self._pattern.findall(text) != self._controls:
            return None
        return text, text if start is None else start
