"""Attributes, items and slices of values, as Jinja's sandbox reads them, and the rounds of a loop over one.

A loop has a round for each item that is known, and one that stands for any number of those that are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jinja2 import Undefined

from rolloutpool_common.rendering.proof.claims import Source
from rolloutpool_common.rendering.proof.values import (
    ALL,
    LEAST,
    Function,
    Kind,
    Loop,
    Messages,
    NotUnderstood,
    Position,
    Raised,
    Record,
    SplitText,
    Text,
    Unknown,
    derive,
    ends,
    is_plain,
    kind_of,
    sources_of,
    unknown,
)

MUTATORS = frozenset(
    "append extend insert remove clear pop popitem setdefault sort reverse update add discard".split()  # noqa: SIM905
)
"""Methods that the sandbox forbids to call, because they change a list or a table."""
_METHODS = frozenset({*dir(dict), *dir(str), *dir(list)})
"""Names that are an attribute of some values, and a key of others."""
_BEFORE = frozenset({Source.EARLIER, Source.POSITION, Source.SYSTEM})


def an_earlier(messages: Messages) -> Unknown:
    """One of the messages before the turn."""
    return Unknown(_BEFORE, Kind.NUMBER if messages.indices else Kind.MAPPING)


def attribute(value: Any, name: str) -> Any:
    """Returns what `value.name` is."""
    if name.startswith("_") or name in MUTATORS:
        raise NotUnderstood("an attribute that the sandbox hides")
    if isinstance(value, Loop):
        if name not in value.fields:
            raise NotUnderstood(f"loop.{name}")
        field = value.fields[name]
        # Another object at each reading: two of them need not be equal.
        return replace(field) if isinstance(field, Unknown) else field
    if isinstance(value, dict | str | Text | list | tuple | Messages | SplitText):
        kind = {Record: dict, Text: str, Messages: list, SplitText: list}.get(type(value), type(value))
        if hasattr(kind, name):
            return Function(name)
    if isinstance(value, Unknown) and name in _METHODS:
        return unknown(value)
    return item(value, name)


def item(value: Any, key: Any) -> Any:
    """Returns what `value[key]` is."""
    match value:
        case Undefined():
            raise Raised
        case Unknown(role=role) if role is not None and key == "role":
            return role
        case SplitText(sources):
            return Unknown(sources, Kind.TEXT, ends=True) if key == -1 else unknown(value, key)
        case Messages():
            return _message(value, key)
        case dict():
            return _entry(value, key)
        case list() | tuple() | str() if type(key) in (int, bool):
            return value[key] if -len(value) <= key < len(value) else Undefined()
        case None | bool() | int() | float() | list() | tuple() | str() if is_plain(key):
            if isinstance(key, str) and hasattr(value, key):
                raise NotUnderstood(f"the method {key} as an item")
            return Undefined()
        case Unknown() | Text() | Position() | list() | tuple() | str():
            # An item of a joined list may be of any kind.
            return derive(None, "item", value, key)
    raise NotUnderstood("an attribute of a function or a generator")


def _entry(table: dict[str, Any], key: Any) -> Any:
    if not is_plain(key):
        return unknown(table, key)
    if key in table:
        return table[key]
    if isinstance(key, str) and hasattr(dict, key):
        raise NotUnderstood(f"the method {key} as an item")
    return Undefined(name=str(key))


def _message(messages: Messages, key: Any) -> Any:
    size = len(messages.tail)
    if isinstance(key, Position) and not messages.reverse:
        at = key.offset + messages.drop
        if at >= size:
            return Undefined()
        return messages.tail[at] if at >= 0 else an_earlier(messages) if _surely(messages, key) else Unknown(ALL)
    if type(key) is int:
        at = -1 - key if messages.reverse else key
        if at < 0 and -at <= size:
            return messages.tail[at]
        if at == 0 and messages.drop == 0:
            return 0 if messages.indices else messages.first
    if isinstance(key, str):
        return Undefined()
    # It may be none at all, or one behind the turn.
    return Unknown(ALL)


def _surely(messages: Messages, key: Position) -> bool:
    """Whether an index is not negative, so that it isn't counted from the end."""
    return LEAST + key.offset >= 0


def section(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """Returns what `value[start:stop:step]` is."""
    bounds = (start, stop, step)
    if isinstance(value, Undefined):
        raise Raised
    if isinstance(value, Messages):
        return _messages(value, *bounds)
    if ends(value) and step is None and stop is None:
        # `content[n:]` may cut the sentinel, where the turn says little.
        return unknown(value, *bounds, kind=Kind.TEXT)
    if isinstance(value, Text) and step is None:
        return _text(value, start, stop)
    kind = kind_of(value)
    return derive(kind if kind in (Kind.TEXT, Kind.LIST) else None, "section", value, *bounds)


def _messages(value: Messages, start: Any, stop: Any, step: Any) -> Any:
    anything = Unknown(ALL | sources_of(start, stop, step), Kind.LIST)
    if value.reverse or value.indices:
        return anything
    if step == -1 and start is None and stop is None:
        return replace(value, reverse=True)
    if step is not None or stop is not None:
        return anything
    if start in (None, 0):
        return value
    if type(start) is int and 0 < start + value.drop <= value.least:
        return replace(value, drop=value.drop + start)
    if isinstance(start, Position) and start.offset + value.drop >= 0:
        return list(value.tail[start.offset + value.drop :])
    return anything


def _text(value: Text, start: Any, stop: Any) -> Any:
    parts = list(value.parts)
    last = parts[-1]
    right = 0 if stop is None else -stop if type(stop) is int and stop else -1
    if start in (None, 0) and right >= 0:
        if right and isinstance(last, str) and len(last) > right:
            parts[-1], right = last[:-right], 0
        if not right:
            return Text(tuple(parts))
    return derive(Kind.TEXT, "section", value, start, stop)


_COUNTED = frozenset({Source.EARLIER, Source.POSITION, Source.SYSTEM})
_NEIGHBOUR = _COUNTED | {Source.TURN}
_TURNED = {
    "index0": "revindex0",
    "index": "revindex",
    "first": "last",
    "previtem": "nextitem",
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round, or any number of them."""

    value: Any
    loop: Loop
    many: bool = False


def rounds(items: Any) -> list[Round]:
    """The rounds of a loop over these items."""
    match items:
        case Messages():
            return _rounds_of(items)
        case Undefined():
            return []
        case Record() | Unknown() | Text():
            return [_any(Unknown(sources_of(items)))]
        case str() | list() | tuple() | dict():
            return _known(list(items))
        case SplitText():
            return [_any(unknown(items, kind=Kind.TEXT))]
        case None | bool() | int() | float() | Position():
            raise Raised
    raise NotUnderstood("a loop over a namespace or a function")


def _known(items: Sequence[Any]) -> list[Round]:
    size = len(items)
    return [
        Round(
            value,
            _loop(_Side(i, i == 0, items[i - 1] if i else Undefined()), _behind(items, i), size),
        )
        for i, value in enumerate(items)
    ]


def _any(value: Unknown) -> Round:
    number, either = Unknown(value.sources, Kind.NUMBER), Unknown(value.sources, Kind.BOOL)
    near = Unknown(value.sources)
    side = _Side(number, either, near)
    return Round(value, _loop(side, side, number), many=True)


def _rounds_of(items: Messages) -> list[Round]:
    """First message, others before the turn, the turn, new messages; or the same in reverse."""
    size = len(items.tail)
    total = Position(size - items.drop)
    number, either = Unknown(_COUNTED, Kind.NUMBER), Unknown(_COUNTED, Kind.BOOL)
    earlier, neighbour = an_earlier(items), Unknown(_NEIGHBOUR)
    whole = items.drop == 0
    last = False if size else either
    found: list[Round] = []
    if whole:
        value = 0 if items.indices else items.first
        loop = _loop(_Side(0, True, Undefined()), _Side(Position(size - 1), last, neighbour), total)
        found.append(Round(value, loop))
    loop = _loop(_Side(number, False if whole else either, earlier), _Side(number, last, neighbour), total)
    found.append(Round(earlier, loop, many=True))
    for i, value in enumerate(items.tail):
        # Where the first message is left out, the turn may be the first.
        first = False if i or items.drop < items.least else either
        before = _Side(Position(i - items.drop), first, items.tail[i - 1] if i else neighbour)
        found.append(Round(value, _loop(before, _behind(items.tail, i), total)))
    if not items.reverse:
        return found
    return [Round(part.value, _turned(part.loop), part.many) for part in reversed(found)]


class _Side(NamedTuple):
    """Holds what a loop says of the items on one side of the current one."""

    number: Any
    """How many there are."""
    none: Any
    """Whether there are none."""
    next: Any
    """The one next to the current item."""


def _behind(items: Sequence[Any], place: int) -> _Side:
    left = len(items) - 1 - place
    return _Side(left, left == 0, items[place + 1] if left else Undefined())


def _loop(before: _Side, behind: _Side, size: Any) -> Loop:
    fields = {"index0": before.number, "index": _next(before.number), "first": before.none, "previtem": before.next}
    fields |= {"revindex0": behind.number, "revindex": _next(behind.number), "last": behind.none}
    return Loop(fields | {"nextitem": behind.next, "length": size, "depth": 1, "depth0": 0})


def _next(index: Any) -> Any:
    return Position(index.offset + 1) if isinstance(index, Position) else index + 1 if type(index) is int else index


def _turned(loop: Loop) -> Loop:
    swapped = _TURNED | {b: a for a, b in _TURNED.items()}
    return Loop({name: loop.fields[swapped.get(name, name)] for name in loop.fields})
