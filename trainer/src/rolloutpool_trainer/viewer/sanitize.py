"""Makes text of models, trainers and the network safe to look at.

Characters that a terminal or a browser's line layout obeys are written out as escapes. The brackets with which our
views mark tokens are written out too, so that a model cannot draw a mark: `⟦` becomes `\\u27e6`.
"""

import unicodedata

OPEN, CLOSE = "⟦", "⟧"
"""Around what was trained."""
MARK_OPEN, MARK_CLOSE = "⟪", "⟫"
"""Around what the view itself says."""

# Control characters, and format characters such as those that reverse the direction of writing.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\u200c\u200d")
"""Newline, and the joiners that words of some languages and emoji need."""
_RESERVED = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in (OPEN, CLOSE, MARK_OPEN, MARK_CLOSE)})


def printable(text: str) -> str:
    """Writes out as an escape what a terminal could obey, except for newlines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def sanitize(text: str) -> str:
    """Makes the text of tokens printable, escapes our brackets, and puts a sign before each newline."""
    return printable(text).translate(_RESERVED).replace("\n", "↵\n")
