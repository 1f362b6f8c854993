"""Two texts or two lists of ids side by side, around their first difference, in 100 columns and without colour.

    ours                                            | the template's
    <|im_start|>tool↵                               | <|im_start|>tool↵
  ≠ {"id": "0"}38<|im_end|>↵                        | {"id": "1"}38<|im_end|>↵

Lines that differ begin with `≠`. Each line is also marked for callers that colour it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size

from rolloutpool_trainer.viewer.sanitize import sanitize

_WIDTH = 46
"""Columns of one side: 4 for the mark, 46, 3 between them, 46 are 99."""
_PIECE = 28
_BEFORE, _AFTER = 3, 8
"""Lines, or ids, shown before and after the first difference."""
_LONGEST = 20_000
"""Characters of a text that are laid out."""


def texts_side_by_side(ours: str, template: str) -> Iterator[tuple[str, bool]]:
    """Lays out two texts around their first difference."""
    if ours == template:
        return
    at = _first_difference(ours, template)
    # From some way before the difference; the texts are equal up to there.
    begin = max(at - _LONGEST // 2, 0)
    left, right = (_lines(text[begin : begin + _LONGEST]) for text in (ours, template))
    rows = list(zip_longest(left, right, fillvalue=""))
    first = next((i for i, (one, other) in enumerate(rows) if one != other), 0)
    yield _row("ours", "the template's", differs=False), False
    for one, other in rows[max(first - _BEFORE, 0) : first + _AFTER]:
        yield _row(one, other, differs=one != other), one != other


def ids_side_by_side(
    ours: Sequence[int], template: Sequence[int], spell: Callable[[int], str]
) -> Iterator[tuple[str, bool]]:
    """Lays out two lists of ids around their first difference."""
    if list(ours) == list(template):
        return
    if not template:
        yield "    ids cannot be compared: one of them lies on both sides of what was sampled", False
        return
    at = _first_difference(ours, template)
    yield _row("position, id, text", "position, id, text", differs=False), False
    for position in range(max(at - _BEFORE, 0), min(at + _AFTER, max(len(ours), len(template)))):
        one, other = (_id(ids, position, spell) for ids in (ours, template))
        yield _row(one, other, differs=one != other), one != other


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(one), len(other)))


def _lines(text: str) -> list[str]:
    """The lines of a text, each in pieces of the width of a column."""
    found = []
    for line in sanitize(text).split("\n"):
        rest = line
        while True:
            # More than a column's width, even where half of the characters take none. The whole of a long line would be
            # measured again for each of its pieces.
            near = rest[: 2 * _WIDTH]
            piece = set_cell_size(near, _WIDTH).rstrip() if cell_len(near) > _WIDTH else near
            # A character of two columns may not fit at the end, and white space at the end was cut.
            piece = rest[: max(len(piece), 1)]
            found.append(piece)
            rest = rest[len(piece) :]
            if not rest:
                break
    return found


def _id(ids: Sequence[int], position: int, spell: Callable[[int], str]) -> str:
    if position >= len(ids):
        return "(end)" if position == len(ids) else ""
    text = repr(sanitize(spell(ids[position])).replace("\n", ""))
    text = text if cell_len(text) <= _PIECE else set_cell_size(text, _PIECE - 1) + "…"
    return f"{position:>5} {ids[position]:>8} {text}"


def _row(one: str, other: str, *, differs: bool) -> str:
    return f"{'  ≠ ' if differs else '    '}{set_cell_size(one, _WIDTH)} | {other}".rstrip()
