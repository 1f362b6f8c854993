"""Values of a template that runs with unknowns: what is known of them, and what they depend on.

Values that the shape fixes are Python's own, and computed as Jinja does. All else is one of the classes below. None of
them ever changes: Jinja's sandbox forbids templates to change lists and tables, and namespaces live in the state.
"""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jinja2 import Undefined, nodes

from rolloutpool_common.rendering.proof.claims import Reason, Source
from rolloutpool_common.rendering.sentinel import SENTINEL

NOTHING: frozenset[Source] = frozenset()
ALL = frozenset(Source)
LEAST = 1
"""Messages that surely stand before the turn."""


class Raised(Exception):
    """The template raises an error here, so nothing is rendered."""


class NotUnderstood(Exception):
    """A construct that is not imitated; nothing is proved of a template that comes to it."""


class Kind(StrEnum):
    """Says what is known of an unknown value's type."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "boolean"
    LIST = "list"
    MAPPING = "mapping"


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """Any value of this kind. It is a function of its sources."""

    sources: frozenset[Source]
    kind: Kind | None = None
    key: Hashable = None
    """Unknowns of equal keys have equal values in each render; None has no equal."""
    truth: bool | None = None
    ends: bool = False
    """A text that surely ends with the sentinel."""
    role: Any = None
    """Of the first message: its role."""
    never: frozenset[str] = frozenset()
    """Texts that it is not."""
    reason: Reason | None = None
    """Where it got into the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text of constants and unknowns; at least one is unknown."""

    parts: tuple[str | Unknown, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Safe:
    """A text that may be Jinja's `Markup`. Added to others that escapes them, so this may only be printed."""

    value: Any


@dataclass(frozen=True, slots=True)
class Position:
    """The policy turn's index, which is not known, and so many more."""

    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The conversation's messages or their indices."""

    drop: int
    """The first messages that are left out, at most `least`."""
    tail: tuple[Any, ...]
    """Those from the policy's turn on."""
    first: Unknown
    """The first message of all."""
    least: int = LEAST
    """How many stand before the turn at least."""
    reverse: bool = False
    indices: bool = False


class Record(dict[str, Any]):
    """A message with all of its keys, whose order is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Holds what a generator or a dict's view holds: values in order, or an unknown."""

    items: tuple[Any, ...] | Messages | Unknown
    lazy: bool
    """A generator: it is always true and empty at its second use, so it must be used where it is made."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitText:
    """A list of texts that a text was split into; the last one ends with the sentinel."""

    sources: frozenset[Source]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The variable `loop`."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace; the state has its values."""

    place: Hashable


@dataclass(frozen=True, slots=True, eq=False)
class Macro:
    """A macro, and how many scopes it sees."""

    node: nodes.Macro
    depth: int


@dataclass(frozen=True, slots=True)
class Function:
    """A global function or a method, which may only be called."""

    name: str


_OPAQUE = (Loop, Namespace, Macro, Function, Stream, Safe)
_LARGEST = 20_000
"""Values in a value, where so many letters count as one more."""
_LETTERS = 16
_SCALARS = (str, int, float, bool, type(None))


def is_plain(value: Any) -> bool:
    """Whether all of a value is known."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind in (list, tuple):
        return all(map(is_plain, value))
    if kind is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return isinstance(value, Undefined)


def bounded(value: Any) -> Any:
    """A value as it is, if it is small: templates may double one in each round of a loop."""
    size, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        size += 1 + (len(part) // _LETTERS if isinstance(part, str) else 0)
        if size > _LARGEST:
            raise NotUnderstood("a large value")
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return value


def sources_of(*values: Any) -> frozenset[Source]:
    """Returns what values depend on."""
    found = NOTHING
    for value in values:
        kind = type(value)
        if kind is Unknown or kind is SplitText:
            found |= value.sources
        elif kind is str:
            if SENTINEL in value:
                found |= {Source.TURN}
        elif kind is Text:
            found |= sources_of(*value.parts)
        elif kind is Position:
            found |= {Source.POSITION}
        elif kind in (list, tuple):
            found |= sources_of(*value)
        elif kind in (dict, Record):
            found |= sources_of(*value, *value.values())
        elif kind is Stream:
            found |= sources_of(value.items)
        elif kind is Safe:
            found |= sources_of(value.value)
        elif kind in (Messages, Namespace, Loop, Macro):
            return ALL
    return found


def unknown(*values: Any, kind: Kind | None = None, more: Iterable[Source] = ()) -> Unknown:
    """Anything that is made of these values."""
    return Unknown(sources_of(*values) | frozenset(more), kind)


def derive(kind: Kind | None, operation: str, *values: Any) -> Unknown:
    """Returns what a pure operation makes of values: the same of the same."""
    keys: list[Hashable] = [operation]
    for value in values:
        if type(value) is Unknown and value.key is not None:
            keys.append(value.key)
        elif is_plain(value) and not isinstance(value, Undefined):
            keys.append(repr(value))
        else:
            return unknown(*values, kind=kind)
    return Unknown(sources_of(*values), kind, tuple(keys))


_KINDS = {
    str: Kind.TEXT,
    Text: Kind.TEXT,
    bool: Kind.BOOL,
    int: Kind.NUMBER,
    float: Kind.NUMBER,
    Position: Kind.NUMBER,
    list: Kind.LIST,
    Messages: Kind.LIST,
    SplitText: Kind.LIST,
    dict: Kind.MAPPING,
    Record: Kind.MAPPING,
}


def kind_of(value: Any) -> Kind | None:
    """Returns what is known of a value's type; None for None, tuples and undefined values too."""
    return value.kind if type(value) is Unknown else _KINDS.get(type(value))


def same(a: Any, b: Any) -> bool:
    """Whether two values of one place in a template are surely equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Unknown):
        return a.key is not None and a.key == b.key
    if isinstance(a, Text):
        return len(a.parts) == len(b.parts) and all(map(same, a.parts, b.parts))
    if isinstance(a, Messages):
        return (a.drop, a.reverse, a.indices) == (b.drop, b.reverse, b.indices) and same(a.tail, b.tail)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return not isinstance(a, Stream | Loop | SplitText) and bool(a == b)


def mix(a: Any, b: Any, sources: frozenset[Source]) -> Any:
    """A value that is one of two, as a condition of these sources decides."""
    if same(a, b):
        return a
    if isinstance(a, Safe) or isinstance(b, Safe):
        bare_a, bare_b = (value.value if isinstance(value, Safe) else value for value in (a, b))
        return Safe(mix(bare_a, bare_b, sources))
    if isinstance(a, _OPAQUE) or isinstance(b, _OPAQUE):
        return Unknown(ALL)
    kind = kind_of(a)
    both = sources_of(a, b) | sources
    return Unknown(both, kind if kind is not None and kind == kind_of(b) else None, ends=ends(a) and ends(b))


def ends(value: Any) -> bool:
    """Whether a value is a text that surely ends with the sentinel."""
    if isinstance(value, Text):
        value = value.parts[-1]
    return value.ends if isinstance(value, Unknown) else type(value) is str and value.endswith(SENTINEL)


def holds_sentinel(part: Any) -> bool:
    """Whether a part of a text surely holds the sentinel."""
    return part.ends if isinstance(part, Unknown) else SENTINEL in part


def from_sentinel(parts: list[Any]) -> list[Any]:
    """A text's parts from its last sentinel on; what stands before it is never asked for."""
    for at in range(len(parts) - 1, -1, -1):
        part = parts[at]
        if holds_sentinel(part):
            rest = [part.rpartition(SENTINEL)[2]] if isinstance(part, str) and not part.endswith(SENTINEL) else []
            return [Unknown(sources_of(parts[: at + 1]), Kind.TEXT, ends=True), *rest, *parts[at + 1 :]]
    return parts


def joined(values: Iterable[Any]) -> Any:
    """The text of values that are printed one behind the other."""
    parts: list[str | Unknown] = []
    for value in values:
        inner = value.value if isinstance(value, Safe) else value
        for part in inner.parts if isinstance(inner, Text) else (inner,):
            if is_plain(part):
                printed = str(part)
                if parts and isinstance(parts[-1], str):
                    parts[-1] = bounded(parts[-1] + printed)
                elif printed:
                    parts.append(printed)
            else:
                parts.append(part if isinstance(part, Unknown) else unknown(part, kind=Kind.TEXT))
    if not parts:
        return ""
    if len(parts) == 1 and (isinstance(parts[0], str) or parts[0].kind is Kind.TEXT):
        return parts[0]
    return Text(tuple(parts))


_OWN_LETTERS = "0-9a-fqs"
_REACHES = re.compile(f"(^|q)[{_OWN_LETTERS}]*\\Z")


def spares_sentinel(literal: Any) -> bool:
    """Whether a literal is surely found nowhere in the sentinel, nor across its beginning.

    The sentinel is `q`, digits and letters up to `f`, and `s`.
    """
    return isinstance(literal, str) and not _REACHES.search(literal)
