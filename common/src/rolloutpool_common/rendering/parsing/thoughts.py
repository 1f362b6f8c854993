"""Thoughts: what stands between `<think>` and `</think>` at the start of a turn is no content and holds no calls."""

from typing import NamedTuple

OPENS, CLOSES = "<think>", "</think>"


class Split(NamedTuple):
    """A turn's text in two."""

    reasoning: str | None
    """None where the policy did not think."""
    start: int
    """Where the rest begins."""


def split_thoughts(text: str, before: str) -> Split:
    """Splits thoughts off."""
    opened = before.rstrip().endswith(OPENS)
    start = len(text) - len(text.lstrip())
    if text.startswith(OPENS, start):
        start += len(OPENS)
    elif not opened:
        return Split(None, 0)
    end = text.find(CLOSES, start)
    if end < 0:
        return Split(text[start:].strip("\n"), len(text))
    return Split(text[start:end].strip("\n"), end + len(CLOSES))
