"""Rows of a batch, chosen and put in order: filter, sort, page. It knows nothing of where they come from.

A condition is `field operator value`, without spaces:

| condition | passes |
|---|---|
| `status=failed,expired` | any of these values; nothing after `=` means null |
| `worker!=w1` | all others, null too |
| `turns>3`, `>=`, `<`, `<=` | numbers; null never passes |
| `drift~thinking_stripped` | a list that holds this, or a text that contains it |

A cursor names the last row of the page before by its place in the order, so it stays right while rollouts end.
"""

import base64
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rolloutpool_api.composition import Figures
from rolloutpool_api.errors import BadCursor
from rolloutpool_common.protocol.rows import ENDED_FIELDS, ROW_FIELDS
from rolloutpool_common.store.rows import StoredTable

Column = Sequence[Any]
_CONDITION = re.compile(r"([a-z_]+(?:\.[A-Za-z0-9_.-]+)?)(>=|<=|!=|=|>|<|~)(.*)", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Condition:
    """Holds what a row must fulfil."""

    field: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Reads a condition; raises ValueError, which says what is wrong with it."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError("must be `field=value`, with one of = != > >= < <= ~")
        found = cls(*match.groups())
        if found.operator in _ORDER:
            try:
                float(found.value)
            except ValueError:
                raise ValueError(f"`{found.operator}` compares numbers") from None
        return found

    def passes(self, value: Any) -> bool:
        """Tells whether a value of the field fulfils it."""
        if self.operator in _ORDER:
            return isinstance(value, int | float) and _ORDER[self.operator](value, float(self.value))
        if self.operator == "~":
            return self.value in value if isinstance(value, list | str) else False
        return (self._text(value) in self.value.split(",")) is (self.operator == "=")

    @staticmethod
    def _text(value: Any) -> str:
        if isinstance(value, list):
            return "+".join(map(str, value))
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return "" if value is None else str(value)


@dataclass(frozen=True)
class Choice:
    """Some rows, by their place in the table."""

    places: list[int]
    matched: int
    """How many rows pass the conditions, on all pages."""
    next_cursor: str | None


def is_field(name: str, further: Iterable[str]) -> bool:
    """Tells whether rows have such a field, or may get it: behind a word of `further` and a dot, any name may come."""
    word, dot, _ = name.partition(".")
    return name in ROW_FIELDS or (bool(dot) and word in further)


def columns_of(table: StoredTable, batch_id: str, figures: Figures, fields: Sequence[str]) -> dict[str, Column]:
    """Makes columns of stored rows."""
    places = {name: place for place, name in enumerate(ENDED_FIELDS)}
    made: dict[str, Column] = {}
    for name in fields:
        if name == "index":
            made[name] = table.indexes
        elif name == "uid":
            made[name] = [f"{batch_id}-{index}" for index in table.indexes]
        elif "." in name:
            values = figures.get(name, {})
            made[name] = [values.get(index) for index in table.indexes]
        elif name == "group":
            made[name] = table.groups
        else:
            place = places[name]
            # A row that an older version wrote may be shorter.
            made[name] = [row[place] if place < len(row) else None for row in table.rows]
    return made


def choose(
    columns: Mapping[str, Column], conditions: Sequence[Condition], sort: str, cursor: str | None, limit: int
) -> Choice:
    """Chooses the rows of a page."""
    index = columns["index"]
    places = list(range(len(index)))
    for condition in conditions:
        column = columns[condition.field]
        places = [place for place in places if condition.passes(column[place])]
    column, down = columns[sort.removeprefix("-")], sort.startswith("-")
    order = sorted(places, key=lambda place: index[place])
    if sort != "index":
        with_value = [place for place in order if column[place] is not None]
        without = [place for place in order if column[place] is None]
        # `sorted` is stable, with `reverse` too, so equal values stay in order of index.
        order = sorted(with_value, key=lambda place: _key(column[place]), reverse=down) + without
    if cursor is not None:
        value, last = _read_cursor(cursor, sort)
        order = _after(order, column, index, value, last, down)
    page = order[:limit]
    next_cursor = None
    if len(order) > limit:
        at = page[-1]
        next_cursor = _write_cursor(sort, None if column[at] is None else _key(column[at]), index[at])
    return Choice(page, len(places), next_cursor)


def first_index(cursor: str | None) -> int:
    """Returns the first row after a cursor where all rows are wanted in order of their index; raises `BadCursor`."""
    return 0 if cursor is None else _read_cursor(cursor, "index")[1] + 1


def index_cursor(index: int) -> str:
    """Makes the cursor after a row where all rows are wanted in order of their index."""
    return _write_cursor("index", index, index)


def _key(value: Any) -> Any:
    """Returns what a value is compared by: a list by its length, a number and a text as they are."""
    return len(value) if isinstance(value, list) else value


def _after(order: list[int], column: Column, index: Column, value: Any, last: int, down: bool) -> list[int]:
    def follows(place: int) -> bool:
        mine = None if column[place] is None else _key(column[place])
        if mine is None or value is None:
            return (mine is None, index[place]) > (value is None, last)
        if mine == value:
            return bool(index[place] > last)
        return bool(mine < value) if down else bool(mine > value)

    try:
        return [place for place in order if follows(place)]
    except TypeError:
        raise BadCursor("the cursor is of another order: begin without one") from None


def _write_cursor(sort: str, value: Any, index: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([sort, value, index])).decode().rstrip("=")


def _read_cursor(cursor: str, sort: str) -> tuple[Any, int]:
    try:
        found = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        whose, value, index = found
    except (ValueError, TypeError):
        raise BadCursor(
            f"cursor {cursor[:64]!r}: pass `next_cursor` of the page before, or none for the start"
        ) from None
    if whose != sort or not isinstance(index, int) or index < 0 or isinstance(value, list | dict):
        raise BadCursor("the cursor is of another order: begin without one")
    return value, index
