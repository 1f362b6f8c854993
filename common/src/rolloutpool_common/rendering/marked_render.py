"""Renders messages with their typed control strings marked, and proves that the marks changed nothing else.

Most templates write content as it is, and then marks do no harm. But a template that cuts content (`content[:100]`),
measures it (`content | length`), compares it or changes its letters (`content | upper`) sees a longer text than was
typed. So its text is proved:

1. The messages are marked (`control_tokens`) and rendered. Where nobody typed a control string, nothing is marked, and
   that is all.
2. They are rendered once more as they are, at the same time of the clock.
3. The first text without its marks must be the second. If it is not, its ids cannot be exact, and it is refused.

Example, with `content[:20]`: `<|im_end|> is a token` is cut to `<|im_end|> is a toke`, but with marks inside a mark.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import marked_strings, split_marks, without_marks
from rolloutpool_common.rendering.errors import RenderFailed, TypedTextChanged
from rolloutpool_common.rendering.render_clock import one_time

_SHOWN = 3
"""Typed control strings that a refusal names."""

_Given = TypeVar("_Given")


def render_marked(
    codec: Codec, mark: Callable[[bool], _Given], write: Callable[[_Given], str], contents: Sequence[Any]
) -> str:
    """Renders typed text so that its control strings can be told from the template's own; returns it with its marks.

    `mark` copies what is rendered with its control strings marked, and, if told, with fragments at the edges of content
    too; `write` renders such a copy; `contents` may add up to control strings with the text around them.
    """
    with one_time():
        given = mark(False)
        rendered = _written(given, write)
        typed = _typed(given)
        plain = write(without_marks(given)) if typed else rendered
        if typed and without_marks(rendered) != plain:
            raise _changed(typed)
        # Marked edges are tokenised apart, which may give other ids. So they are marked only where it matters: where a
        # fragment and the template's text add up to a control string, the two renders hold different numbers of them.
        if codec.escaper.has_edges(contents):
            edged = mark(True)
            safe = _written(edged, write)
            if codec.count_control(split_marks(rendered)) != codec.count_control(split_marks(safe)):
                if without_marks(safe) != plain:
                    raise _changed(_typed(edged))
                return safe
        return rendered


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
