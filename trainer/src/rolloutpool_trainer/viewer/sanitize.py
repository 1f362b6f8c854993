"""Text of models, trainers and the network, made safe to look at: it says what it says and does nothing.

What a terminal or a browser's line layout could obey is written out as an escape. The brackets with which our views
mark tokens are reserved: in foreign text they are written out too, so that no model can draw a mark.
"""

import unicodedata

__all__ = ["CLOSE", "MARK_CLOSE", "MARK_OPEN", "OPEN", "printable", "sanitize"]

OPEN, CLOSE = "⟦", "⟧"
"""Around what was trained."""
MARK_OPEN, MARK_CLOSE = "⟪", "⟫"
"""Around what a view says itself."""

# Control characters, and format characters such as those that reverse the direction of writing.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\u200c\u200d")
"""Newline, and the joiners that words of some languages and emoji need."""
_RESERVED = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in (OPEN, CLOSE, MARK_OPEN, MARK_CLOSE)})


def printable(text: str) -> str:
    """The text with everything that a terminal could obey written out as an escape, newlines excepted."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def sanitize(text: str) -> str:
    """The text of tokens: printable, reserved brackets escaped, and each newline with a sign in front."""
    return printable(text).translate(_RESERVED).replace("\n", "↵\n")
