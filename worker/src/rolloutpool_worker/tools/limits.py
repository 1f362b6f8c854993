"""Limits of tool calls: what a policy or a tool may cost the other rollouts of the same worker.

- A turn that makes too many calls ends its rollout as a failure of the policy (`TooManyToolCalls`).
- Arguments that are too large are not parsed, and no tool gets them. What was sampled stays as it is, because ids and
  masks must match it; the policy reads in the tool message why its call was not run.
- A result that is too large is cut once, before it gets into the journal, the tokens or a request. The cut has a mark
  that the policy can read:

    0123456789… [cut: 10 of 2000000 characters shown]
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

LONGEST_FAULT = 1000
"""Characters of a message about wrong arguments. Python and jsonschema quote the arguments, which may be long."""


@dataclass(frozen=True)
class ToolLimits:
    """Holds what the tool calls of one turn may use."""

    seconds: float
    """Longest wait for one call."""
    calls: int
    """Calls in one turn."""
    arguments: int
    """Characters in one call's arguments."""
    result: int
    """Bytes of one result, as UTF-8."""


class ShownResult(NamedTuple):
    """Holds what is shown of a tool's text."""

    text: str
    """The text itself, or its beginning with a mark that says how much is shown."""
    cut: bool


def cut_result(text: str, limit: int) -> ShownResult:
    """Makes a tool's text one that can be sent: it is valid UTF-8, and at most `limit` bytes of it are shown."""
    # A character takes a byte at least, so the rest cannot be shown; a long text is not encoded for nothing.
    # Half of a surrogate pair is a string to Python, but it cannot be encoded as UTF-8.
    data = text[:limit].encode("utf-8", "backslashreplace")
    if len(text) <= limit and len(data) <= limit:
        return ShownResult(data.decode(), cut=False)
    # The border may be in the middle of a character; "ignore" drops its first bytes.
    shown = data[:limit].decode("utf-8", "ignore")
    mark = f"… [cut: {min(len(shown), len(text))} of {len(text)} characters shown]"
    return ShownResult(f"{shown}{mark}", cut=True)


def shorten_fault(text: str) -> str:
    """Shortens a message that quotes arguments."""
    if len(text) <= LONGEST_FAULT:
        return text
    return f"{text[:LONGEST_FAULT]}… [cut: {LONGEST_FAULT} of {len(text)} characters shown]"


def size_of(value: str | list[Any] | dict[str, Any], *, at_most: int) -> int:
    """The characters of a text, or of all texts in an object or list; each element counts for one more."""
    # A list instead of recursion: arguments may be nested more deeply than Python's stack allows.
    size, left = 0, [value]
    while left and size <= at_most:
        part: Any = left.pop()
        if isinstance(part, str | list | dict):
            size += len(part)
        if isinstance(part, dict):
            left.extend(part)
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
    return size
