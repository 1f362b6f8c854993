"""The rounds of a loop: each item that is known, and one round that stands for any number of those that are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Undefined

from rolloutpool_common.rendering.proof.access import an_earlier
from rolloutpool_common.rendering.proof.claims import Source
from rolloutpool_common.rendering.proof.values import (
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
    sources_of,
    unknown,
)

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
            return _messages(items)
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
            _loop(
                i,
                size - 1 - i,
                size,
                first=i == 0,
                last=i == size - 1,
                before=items[i - 1] if i else Undefined(),
                behind=items[i + 1] if i + 1 < size else Undefined(),
            ),
        )
        for i, value in enumerate(items)
    ]


def _any(value: Unknown) -> Round:
    number, either = Unknown(value.sources, Kind.NUMBER), Unknown(value.sources, Kind.BOOL)
    near = Unknown(value.sources)
    return Round(value, _loop(number, number, number, first=either, last=either, before=near, behind=near), many=True)


def _messages(items: Messages) -> list[Round]:
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
        loop = _loop(0, Position(size - 1), total, first=True, last=last, before=Undefined(), behind=neighbour)
        found.append(Round(value, loop))
    loop = _loop(number, number, total, first=False if whole else either, last=last, before=earlier, behind=neighbour)
    found.append(Round(earlier, loop, many=True))
    for i, value in enumerate(items.tail):
        # Where the first message is left out, the turn may be the first.
        first = False if i or items.drop < items.least else either
        loop = _loop(
            Position(i - items.drop),
            size - 1 - i,
            total,
            first=first,
            last=i == size - 1,
            before=items.tail[i - 1] if i else neighbour,
            behind=items.tail[i + 1] if i + 1 < size else Undefined(),
        )
        found.append(Round(value, loop))
    if not items.reverse:
        return found
    return [Round(part.value, _turned(part.loop), part.many) for part in reversed(found)]


def _loop(index: Any, left: Any, size: Any, *, first: Any, last: Any, before: Any, behind: Any) -> Loop:
    fields = {"index0": index, "index": _next(index), "revindex0": left, "revindex": _next(left)}
    fields |= {"first": first, "last": last, "previtem": before, "nextitem": behind}
    return Loop(fields | {"length": size, "depth": 1, "depth0": 0})


def _next(index: Any) -> Any:
    return Position(index.offset + 1) if isinstance(index, Position) else index + 1 if type(index) is int else index


def _turned(loop: Loop) -> Loop:
    swapped = _TURNED | {b: a for a, b in _TURNED.items()}
    return Loop({name: loop.fields[swapped.get(name, name)] for name in loop.fields})
