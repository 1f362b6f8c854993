"""Typed control strings in other letters.

Each control string that somebody typed is replaced by as many rare letters before a template renders it, so that the
template may cut and measure it. The first letter says which string it is. No filter of jinja changes these letters, and
no conversation here holds any of them.
"""

import re
from collections.abc import Sequence
from typing import Any

_FIRST, _MORE = 0x20000, "\U0002a6d0"
PIECES = re.compile(f"([\U00020000-\U0002a000]{_MORE}*)")
"""Splits a text into what stands there as it is and, at odd places, what was typed."""
_KEPT = frozenset({"role", "type", "id", "tool_call_id", "name"})


class Spelling:
    """Replaces control strings and says what they were."""

    def __init__(self, controls: Sequence[str]) -> None:
        self._controls = controls
        self.pattern = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        """Finds control strings; where several begin at a place, the longest."""
        self._letters = {text: chr(_FIRST + i) + _MORE * (len(text) - 1) for i, text in enumerate(controls)}

    def of(self, value: Any) -> Any:
        """A message, a list of them or a text with its control strings replaced; roles, names and ids stay."""
        if isinstance(value, str):
            return self.pattern.sub(lambda match: self._letters[match.group()], value)
        if isinstance(value, dict):
            return {self.of(k): v if k in _KEPT else self.of(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return value

    def meant(self, piece: str) -> str:
        """What was typed there; what the template cut off is missing."""
        return self._controls[ord(piece[0]) - _FIRST][: len(piece)]

    def undone(self, text: str) -> str:
        """The text as it would be without replacing."""
        return PIECES.sub(lambda match: self.meant(match.group()), text)
