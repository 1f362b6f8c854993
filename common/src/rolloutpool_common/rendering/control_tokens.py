"""Keeps text that somebody typed from becoming control tokens.

Before rendering, every control string inside untrusted text is put between two nonces; behind the template, the
codec encodes what lies between them as plain text. The nonces are letters and digits, new in each process, because
such text passes through every filter of a template (trim, tojson, repr) unchanged. Where a template writes text
right beside the content, the two may add up to a control string; `edges=True` marks such fragments as well.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.errors import ContentUnsafe

__all__ = ["NONCE", "ControlTokenEscaper", "split_marks"]

NONCE = "q" + secrets.token_hex(12)
"""In every mark, sentinel and marker of this process; text that contains it is refused."""

_OPEN, _CLOSE = NONCE + "o", NONCE + "c"
_MARK = re.compile(f"({_OPEN}|{_CLOSE})")


class ControlTokenEscaper:
    """Wraps the control strings of one tokenizer in untrusted text."""

    def __init__(self, control: Iterable[str], special: Iterable[str]) -> None:
        """`special` are those of the `control` strings that not even an assistant message may contain."""
        strings = sorted(control, key=len, reverse=True)
        self.pattern = _any_of(strings)
        """Matches the longest control string at a place."""
        self._special_pattern = _any_of(sorted(special, key=len, reverse=True))
        self._heads = frozenset(s[:i] for s in strings for i in range(1, len(s)))
        self._tails = frozenset(s[i:] for s in strings for i in range(1, len(s)))
        self._joined = "\0".join(strings)
        self._longest = max(map(len, strings), default=0)

    def messages(self, messages: Sequence[Mapping[str, Any]], *, edges: bool = False) -> list[dict[str, Any]]:
        """Copies of the messages with all control strings marked. Raises ContentUnsafe."""
        return [
            {
                key: value
                if key == "role"
                else self.value(value, edges=edges, special_only=message.get("role") == "assistant")
                for key, value in message.items()
            }
            for message in messages
        ]

    def value(self, value: Any, *, edges: bool = False, special_only: bool = False) -> Any:
        """A copy of any JSON value with the control strings in its strings and keys marked. Raises ContentUnsafe.

        `special_only` leaves markup such as `<think>` alone: in what an assistant said it is meant.
        """
        if isinstance(value, str):
            return self._text(value, edges=edges, special_only=special_only)
        if isinstance(value, Mapping):
            return {
                self.value(k, edges=edges, special_only=special_only): self.value(
                    v, edges=edges, special_only=special_only
                )
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item, edges=edges, special_only=special_only) for item in value]
        return value

    def has_edges(self, value: Any) -> bool:
        """Whether a string in there could add up to a control string with its neighbours."""
        if isinstance(value, str):
            return self._edge_lengths(value) != (0, 0)
        if isinstance(value, Mapping):
            return any(self.has_edges(k) or self.has_edges(v) for k, v in value.items())
        return isinstance(value, list | tuple) and any(map(self.has_edges, value))

    def _text(self, text: str, *, edges: bool, special_only: bool) -> str:
        if NONCE in text:
            raise ContentUnsafe("Content contains this process's own sentinel. Whoever sent it has seen our internals.")
        head, tail = self._edge_lengths(text) if edges else (0, 0)
        end = len(text) - tail
        pattern = self._special_pattern if special_only else self.pattern
        middle = pattern.sub(lambda match: _mark(match.group()), text[head:end])
        return _mark(text[:head]) + middle + _mark(text[end:])

    def _edge_lengths(self, text: str) -> tuple[int, int]:
        if len(text) < self._longest and text.strip() and text in self._joined:
            return len(text), 0
        sizes = range(min(self._longest, len(text)) - 1, 0, -1)
        head = next((n for n in sizes if text[:n] in self._tails), 0)
        tail = next((n for n in sizes if text[-n:] in self._heads and head + n <= len(text)), 0)
        return head, tail


def split_marks(text: str) -> list[tuple[str, bool]]:
    """The rendered text as pieces (text, whether control strings in it are meant).

    Raises ContentUnsafe where the template tore a marked control string apart.
    """
    if NONCE not in text:
        return [(text, True)]
    pieces, control = [], True
    for part in _MARK.split(text):
        if part == (_CLOSE if control else _OPEN) or NONCE in part.replace(_OPEN, "").replace(_CLOSE, ""):
            raise ContentUnsafe("The template tears apart a control token that was typed as content.")
        if part in (_OPEN, _CLOSE):
            control = part == _CLOSE
        elif part:
            pieces.append((part, control))
    if not control:
        raise ContentUnsafe("The template cuts off a control token that was typed as content.")
    return pieces


def _mark(text: str) -> str:
    return _OPEN + text + _CLOSE if text else ""


def _any_of(strings: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, strings)) or r"(?!)")
