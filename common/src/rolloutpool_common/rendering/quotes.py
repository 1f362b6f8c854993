"""Takes quotes of messages out of an error's text.

A template may raise whatever it likes, also `bad message: ` with the message behind it. Errors go into logs, results
and answers, and none of these may hold text of prompts. So what the text shares with a message is replaced by `…`,
unless the template's own source says it.

1. The error's text is cut into blocks of 8 characters. Any common run of 15 or more holds one of these blocks whole, so
   38 searches find all quotes in an error of 300 characters, however long the messages are.
2. A block that a message holds is extended to both sides, as far as that message goes on alike.
3. Shorter messages are looked for as a whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_BLOCK = 8
_LEAST = 12
"""Characters of a run that is a quote; shorter ones are common words."""
_SHORTEST = 3
"""Characters of a message that is looked for as a whole; what is shorter is in any text."""


def without_quotes(text: str, messages: Iterable[Mapping[str, Any]], source: str) -> str:
    """Replaces what an error's text quotes of messages."""
    quoted = [False] * len(text)
    for said in _strings([{**message, "role": ""} for message in messages]):
        for start, end in _shared(text, said):
            if text[start:end] not in source:
                quoted[start:end] = [True] * (end - start)
    shown = [("…" if not i or not quoted[i - 1] else "") if hidden else text[i] for i, hidden in enumerate(quoted)]
    return "".join(shown)


def _shared(text: str, said: str) -> Iterator[tuple[int, int]]:
    """Returns where the text quotes a string."""
    if _SHORTEST <= len(said.strip()) <= 2 * _BLOCK:
        at = text.find(said.strip())
        while at >= 0:
            yield at, at + len(said.strip())
            at = text.find(said.strip(), at + 1)
    for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
        found = said.find(text[start : start + _BLOCK])
        if found < 0:
            continue
        left, right = 0, _BLOCK
        while start > left < found and text[start - left - 1] == said[found - left - 1]:
            left += 1
        while start + right < len(text) and found + right < len(said) and text[start + right] == said[found + right]:
            right += 1
        if left + right >= _LEAST:
            yield start - left, start + right


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            # Only keys of the caller's own make; `content` and the like are words of every error.
            yield from _strings(item)
            if isinstance(key, str) and len(key) > 2 * _BLOCK:
                yield key
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
