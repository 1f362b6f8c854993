"""Findings of a parser in a sampled text, and calls that are JSON: an object with a name, and with arguments."""

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rolloutpool_common.rendering.template import Tools


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


BROKEN_NAME = "invalid_tool_call"
"""The name of a call that has none which could be read."""
LONGEST_NAME = 256
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,256})"')
_LONGEST_FAULT = 200


def decode(text: str) -> Any:
    """Parses JSON; raises ValueError, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def usable_name(name: object) -> bool:
    """Whether a tool can have this name."""
    return isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME and _encodable(name)


def call_of(value: Any, raw: str, span: tuple[int, int]) -> FoundCall:
    """Makes a call of a JSON value."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not usable_name(value.get("name")):
        return broken(raw, span, "a tool call must be an object with a name and arguments")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not _encodable(arguments):
        # An escaped lone surrogate is valid JSON, but it cannot be encoded as UTF-8.
        return broken(raw, span, "its arguments hold half of a surrogate pair")
    return FoundCall(*span, value["name"], arguments)


def broken(raw: str, span: tuple[int, int], why: str, status: CallStatus = CallStatus.INVALID) -> FoundCall:
    """Makes a call that cannot be run."""
    named = _NAME.search(raw)
    name = named[1] if named is not None and usable_name(named[1]) else BROKEN_NAME
    return FoundCall(*span, name, raw, status, f"Invalid tool call, not run: {why[:_LONGEST_FAULT]}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
