"""What is asked of a proof, and what it says: the shape of a turn's end, and what the text behind it is made of."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class NewMessage(NamedTuple):
    """What is known of a new message."""

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
    """What is known of a conversation: its policy turn and its new messages.

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
    """What a value may depend on."""

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
    """What is proved of the text behind the sentinel, wherever the template renders the conversation at all."""

    parts: tuple[str | Word | JsonWord, ...] | None
    """These joined are the text, if `guard` lets all texts of the new messages pass. None where that isn't proved, and
    where these texts, or the turn's own, decide whether the template raises an error."""
    guard: frozenset[str]
    """What no text of a new message may hold. Besides, none may be empty, or begin or end with white space."""
    independent: bool
    """For any words, no earlier message and no number of messages is in the text."""
    reads: frozenset[Source]
    """For any words, what the text may depend on. All there is where nothing is proved."""
    reasons: tuple[Reason, ...]
    """Why `parts` is None, or `independent` is false."""
