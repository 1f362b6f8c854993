"""What a parser found in a sampled text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Tools = Sequence[Mapping[str, Any]]


class CallStatus(StrEnum):
    """Whether a call can be run."""

    OK = "ok"
    INVALID = "invalid"
    """It is not written as the model's family writes calls: broken JSON, no name."""
    UNCLOSED = "unclosed"
    """The policy ended its turn in the middle of it."""


@dataclass(frozen=True)
class FoundCall:
    """A call in a text, or what was meant to be one."""

    start: int
    end: int
    """Behind its last character, closing tag included."""
    name: str
    arguments: str
    """JSON of an object; what stands there where it is none."""
    status: CallStatus = CallStatus.OK
    fault: str = ""
    """What is wrong with it, for the policy to read."""


@dataclass(frozen=True)
class Found:
    """A text, taken apart."""

    content: str
    """What is neither thought nor call."""
    calls: tuple[FoundCall, ...] = ()
    reasoning: str | None = None
    """What the policy thought; None where it did not."""


class TextParser(Protocol):
    """Takes apart what was sampled in one turn."""

    def find(self, text: str, *, before: str, tools: Tools) -> Found:
        """Finds thoughts, calls and content."""
        ...


@dataclass(frozen=True)
class ParsedCall:
    """A call of a message."""

    id: str
    status: CallStatus
    span: tuple[int, int]
    """Where it stands in the turn's text, in characters."""


@dataclass(frozen=True)
class ParsedTurn:
    """A sampled turn as a message."""

    message: dict[str, Any]
    """In normal form. Calls that cannot be run are among its calls, and `tool_call_faults` says why."""
    calls: tuple[ParsedCall, ...] = field(default=())
    """One for each call of the message, in order."""
