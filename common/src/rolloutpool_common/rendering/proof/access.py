"""Attributes, items and slices of values, as Jinja's sandbox reads them."""

from dataclasses import replace
from typing import Any

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
    """What `value.name` is."""
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
    """What `value[key]` is."""
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
    """What `value[start:stop:step]` is."""
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
