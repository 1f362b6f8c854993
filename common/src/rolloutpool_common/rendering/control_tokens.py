"""Keeps text that somebody typed from becoming control tokens.

A user who types `<|im_end|>` must not end the turn, and a tool's output must not begin a new one.

1. **Mark.** Before rendering, every control string in such text is put between two nonces: `NONCEo<|im_end|>NONCEc`. A
   nonce is letters and digits, because these pass through every filter of a template (trim, tojson, repr) unchanged. It
   is new in each process, so that nobody can type it.
2. **Render.** The template writes its own control strings around the marked content.
3. **Prove** (`ControlTokenEscaper.render`). Most templates write content as it is, and then marks do no harm. One that
   cuts content (`content[:100]`), measures it, compares it or changes its letters sees a longer text than was typed. So
   where anything is marked, the messages are rendered once more as they are, at the same time of the clock. The first
   text without its marks must be the second. If it is not, its ids cannot be exact, and it is refused. With
   `content[:20]`, `<|im_end|> is a token` is cut to `<|im_end|> is a toke`, but with marks inside a mark.
4. **Split** (`split_marks`). The rendered text is cut at the nonces. Control strings between them are spelled by the
   codec, all others become control ids.

Where a template writes text right next to content, the two may add up to a control string: `<|im_` typed, `end|>`
written. With `edges=True` such fragments are marked as well.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rolloutpool_common.rendering.errors import ContentUnsafe, RenderFailed, TypedTextChanged
from rolloutpool_common.rendering.render_clock import one_time

NONCE = "q" + secrets.token_hex(12)
"""Part of every mark, sentinel and marker of this process; text that contains it is refused."""

_OPEN, _CLOSE = NONCE + "o", NONCE + "c"
_MARK = re.compile(f"({_OPEN}|{_CLOSE})")
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_NAMES = frozenset(
    [
        "arguments",
        "content",
        "description",
        "enum",
        "function",
        "id",
        "items",
        "name",
        "parameters",
        "properties",
        "required",
        "text",
        "type",
    ]
)
"""Keys by which templates find the parts of messages and tools. `text` is a fragment of `<|endoftext|>`, and `name` of
`<|name|>`; a template does not find a marked key."""
_SHOWN = 3
"""Typed control strings that a refusal names."""

_Given = TypeVar("_Given")


class ControlTokenEscaper:
    """Marks the control strings of one tokenizer in text that somebody typed."""

    def __init__(self, control: Iterable[str], special: Iterable[str]) -> None:
        """Prepares the patterns."""
        # Longest first, because of several alternatives a regular expression takes the first that fits.
        strings = sorted(control, key=len, reverse=True)
        self.pattern = _any_of(strings)
        """Matches the longest control string at a place."""
        self._special_pattern = _any_of(sorted(special, key=len, reverse=True))
        self._heads = frozenset(s[:i] for s in strings for i in range(1, len(s)))
        self._tails = frozenset(s[i:] for s in strings for i in range(1, len(s)))
        # Separated, so that a text that is found in it lies within one control string.
        self._joined = "\0".join(strings)
        self._longest = max(map(len, strings), default=0)

    def render(self, mark: Callable[[bool], _Given], write: Callable[[_Given], str], contents: Sequence[Any]) -> str:
        """Renders typed text with its marks, so that its control strings can be told from the template's own.

        `mark` copies what is rendered with its control strings marked, and, if told, with fragments at the edges of
        content too; `write` renders such a copy; `contents` may add up to control strings with the text around them.
        """
        with one_time():
            given = mark(False)
            rendered = _written(given, write)
            typed = _typed(given)
            plain = write(without_marks(given)) if typed else rendered
            if typed and without_marks(rendered) != plain:
                raise _changed(typed)
            # Marked edges are tokenised apart, which may give other ids. So they are marked only where it matters:
            # where a fragment and the template's text add up to a control string, the two renders hold different
            # numbers of them.
            if self.has_edges(contents):
                edged = mark(True)
                safe = _written(edged, write)
                if self._count(rendered) != self._count(safe):
                    if without_marks(safe) != plain:
                        raise _changed(_typed(edged))
                    return safe
            return rendered

    def _count(self, rendered: str) -> int:
        """Counts the control strings that the template wrote."""
        return sum(len(self.pattern.findall(piece)) for piece, control in split_marks(rendered) if control)

    def messages(self, messages: Sequence[Mapping[str, Any]], *, edges: bool = False) -> list[dict[str, Any]]:
        """Copies the messages with their control strings marked, everywhere but in roles."""
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
        """Copies a JSON value with the control strings in its strings and keys marked."""
        try:
            return self._copy(value, edges, special_only)
        except RecursionError:
            raise RenderFailed("a message or a tool is nested too deeply to be rendered") from None

    def _copy(self, value: Any, edges: bool, special_only: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, edges=edges, special_only=special_only)
        if isinstance(value, Mapping):
            return {
                self._copy(k, edges and k not in _NAMES, special_only): self._copy(v, edges, special_only)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._copy(item, edges, special_only) for item in value]
        return value

    def has_edges(self, value: Any) -> bool:
        """Whether a string in the value could add up to a control string with the text next to it."""
        if isinstance(value, str):
            return self._edge_lengths(value) != (0, 0)
        if isinstance(value, Mapping):
            return any((k not in _NAMES and self.has_edges(k)) or self.has_edges(v) for k, v in value.items())
        return isinstance(value, list | tuple) and any(map(self.has_edges, value))

    def _text(self, text: str, *, edges: bool, special_only: bool) -> str:
        if NONCE in text:
            raise ContentUnsafe("Content contains this process's own sentinel, which no client should know.")
        head, tail = self._edge_lengths(text) if edges else (0, 0)
        end = len(text) - tail
        pattern = self._special_pattern if special_only else self.pattern
        middle = pattern.sub(lambda match: _mark(match.group()), text[head:end])
        return _mark(text[:head]) + middle + _mark(text[end:])

    def _edge_lengths(self, text: str) -> tuple[int, int]:
        # Text on both of its sides could complete it, as `im_` between `<|` and `end|>`. So all of it is marked.
        if len(text) < self._longest and text.strip() and text in self._joined:
            return len(text), 0
        sizes = range(min(self._longest, len(text)) - 1, 0, -1)
        head = next((n for n in sizes if text[:n] in self._tails), 0)
        # The two must not overlap, or characters would be written twice.
        tail = next((n for n in sizes if text[-n:] in self._heads and head + n <= len(text)), 0)
        return head, tail


def split_marks(text: str) -> list[tuple[str, bool]]:
    """Splits a rendered text at its marks."""
    if NONCE not in text:
        return [(text, True)]
    pieces, control = [], True
    for part in _MARK.split(text):
        # A mark out of turn, or a nonce that has lost its letter: the template cut or moved a part.
        if part == (_CLOSE if control else _OPEN) or NONCE in part.replace(_OPEN, "").replace(_CLOSE, ""):
            raise TypedTextChanged("The template tears apart a control token that was typed as content.")
        if part in (_OPEN, _CLOSE):
            control = part == _CLOSE
        elif part:
            pieces.append((part, control))
    if not control:
        raise TypedTextChanged("The template cuts off a control token that was typed as content.")
    return pieces


def marked_strings(value: Any) -> list[str]:
    """What is marked in the strings and keys of a JSON value: control strings, and fragments of them, each once."""
    # One text of all of it, because each render asks, and a long history has thousands of values.
    return list(dict.fromkeys(_MARKED.findall(repr(value))))


def without_marks(value: Any) -> Any:
    """Copies a JSON value with all marks taken out: what `ControlTokenEscaper.value` was given."""
    if isinstance(value, str):
        return _MARK.sub("", value)
    if isinstance(value, Mapping):
        return {without_marks(key): without_marks(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_marks(item) for item in value]
    return value


def _written(given: _Given, write: Callable[[_Given], str]) -> str:
    try:
        return write(given)
    except RenderFailed:
        typed = _typed(given)
        if not typed:
            raise
        # What the template says of the messages as they are is the better reason, if it refuses these too.
        write(without_marks(given))
        raise _changed(typed) from None


def _typed(given: Any) -> list[str]:
    """The control strings that are marked."""
    try:
        return marked_strings(given)
    except RecursionError:
        raise RenderFailed("a message or a tool is nested too deeply to be rendered") from None


def _changed(typed: Sequence[str]) -> TypedTextChanged:
    shown = ", ".join(f"`{text}`" for text in typed[:_SHOWN])
    return TypedTextChanged(
        f"The template cuts, measures or changes text in which control strings were typed ({shown}), so its ids cannot "
        "be exact. Take these out of the messages, or use a template that writes their texts as they are."
    )


def _mark(text: str) -> str:
    return _OPEN + text + _CLOSE if text else ""


def _any_of(strings: Sequence[str]) -> re.Pattern[str]:
    # `(?!)` fits nowhere; an empty pattern would fit everywhere.
    return re.compile("|".join(map(re.escape, strings)) or r"(?!)")
