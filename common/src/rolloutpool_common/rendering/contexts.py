"""Contexts that a probe puts before a turn, to find out whether the text after the turn depends on them.

They are invented: a template is foreign code, and what it reads of a history is seen only by what it writes. Content
whose text does not matter is a numbered marker, so that content which moves is found again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.template import Message

__all__ = ["EARLIER", "SAID", "SYSTEM", "USER", "histories", "switched", "switched_systems"]

SYSTEM: dict[str, Any] = {"role": "system", "content": "x"}
USER: dict[str, Any] = {"role": "user", "content": "x"}
SAID: dict[str, Any] = {"role": "assistant", "content": "y"}
EARLIER = 1_000_000
"""Markers of earlier messages are counted from here."""


def histories(*, arguments_as_text: bool) -> list[list[Message]]:
    """Histories before a turn, with markers as content: rounds of calls, answers, thoughts.

    Args:
        arguments_as_text: Whether the template takes the arguments of calls as text only.
    """
    arguments: Any = '{"a": "b"}' if arguments_as_text else {"a": "b"}

    def rounds(n: int, calls: int) -> list[Message]:
        found: list[Message] = [USER]
        for i in range(n):
            ids = [f"past{i:02d}{j:03d}" for j in range(calls)]
            made = [{"id": c, "type": "function", "function": {"name": "f", "arguments": arguments}} for c in ids]
            results = [{"role": "tool", "tool_call_id": c, "name": "f", "content": "r"} for c in ids]
            found += [{**SAID, "content": "", "tool_calls": made}, *results]
        return found

    answered: list[Message] = [USER, SAID, USER]
    found: list[list[Message]] = [
        answered,
        [*answered, SAID, USER],
        *(rounds(n, 1) for n in (1, 2, 3)),
        rounds(1, 2),
        [*rounds(1, 1), SAID, USER],
        [USER, {**SAID, "content": "<think>\ny\n</think>\n\ny"}, USER],
        [USER, {**SAID, "reasoning_content": "y"}, USER],
    ]
    return [_earlier(history) for history in found]


def switched_systems(words: Sequence[str]) -> Iterator[list[Message]]:
    """Contexts whose system message says a word, first or last."""
    for word in words:
        for text in (f"{word} x", f"x {word}"):
            yield [{**SYSTEM, "content": text}, USER]


def switched(words: Sequence[str]) -> Iterator[list[Message]]:
    """Contexts in which a question or an answer says a word, first or last."""
    for word in words:
        for text in (f"{word} x", f"x {word}"):
            yield [{**USER, "content": text}]
            yield [USER, {"role": "assistant", "content": text}, USER]


def _earlier(history: Sequence[Message]) -> list[Message]:
    """Markers for content that is plain text and no word of a test."""
    marks = sentinel.marked(history, EARLIER)
    return [
        mark if message["content"] in ("x", "y", "r") else message for message, mark in zip(history, marks, strict=True)
    ]
