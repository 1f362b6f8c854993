"""Filters, methods and operators on values that are partly unknown. What is known is computed by Jinja itself."""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from jinja2 import Environment, Undefined
from jinja2.runtime import Context

from rolloutpool_common.rendering.proof.access import MUTATORS, item
from rolloutpool_common.rendering.proof.claims import JsonWord, TableWord, Word
from rolloutpool_common.rendering.proof.comparisons import Assumptions, Comparisons
from rolloutpool_common.rendering.proof.values import (
    Kind,
    Messages,
    NotUnderstood,
    Position,
    Raised,
    Record,
    Safe,
    SplitText,
    Stream,
    Text,
    Unknown,
    bounded,
    derive,
    ends,
    from_sentinel,
    is_plain,
    joined,
    kind_of,
    sources_of,
    spares_sentinel,
    unknown,
)

_TEXTS = (
    "trim strip lstrip rstrip string upper lower title capitalize swapcase replace join tojson indent format "
    "removeprefix removesuffix"
)
_LISTS = "list sort dictsort split rsplit splitlines"
_NUMBERS = "length count int float abs find rfind index wordcount"
_BOOLS = "startswith endswith isdigit isspace isalpha isalnum isnumeric isupper islower"
_OTHERS = "first last default d min max sum round get copy partition rpartition"
_LAZY = frozenset(["map", "select", "reject", "selectattr", "rejectattr", "items", "unique", "batch", "slice"])
_VIEWS = frozenset({"items", "keys", "values"})
_MADE: dict[str, Kind | None] = {
    **dict.fromkeys(_TEXTS.split(), Kind.TEXT),
    **dict.fromkeys(_LISTS.split(), Kind.LIST),
    **dict.fromkeys(_NUMBERS.split(), Kind.NUMBER),
    **dict.fromkeys(_BOOLS.split(), Kind.BOOL),
    **dict.fromkeys(_OTHERS.split()),
    "abs": None,
}
"""Operations without effects, and the kind of what they make. Filters and methods of one name do alike here."""
_STRIPS = frozenset({"trim", "strip", "lstrip", "rstrip"})
_LETTERS = "\\ \"'/<>&\b\f\n\r\t\x00\x7f\u2028\u00e9\U0001f600"
"""All that some writer of JSON escapes."""
_TABLE = {"b": [1, {"c": None}], "a": 0.5}
"""What some writers of JSON sort, indent or put closer together."""
_MOST = 10_000
"""The largest number that may be computed with, because a template may make texts of that length."""
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
}


class Operations:
    """Filters, methods and operators, under a guard."""

    def __init__(self, environment: Environment, guard: Assumptions, comparisons: Comparisons) -> None:
        """The environment has the filters."""
        self._environment = environment
        self._guard = guard
        self._comparisons = comparisons

    def knows(self, name: str) -> bool:
        """Whether a filter is imitated."""
        return name in self._environment.filters and (name in _MADE or name in _LAZY or name in ("safe", "reverse"))

    def is_global(self, name: str) -> bool:
        """Whether Jinja gives a value of this name to all templates."""
        return name in self._environment.globals

    def filter(self, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what `value | name(arguments)` is."""
        if name not in self._environment.filters:
            raise Raised
        if not self.knows(name):
            raise NotUnderstood(f"the filter {name}")
        if (name == "safe" and not isinstance(value, Stream)) or (name == "string" and isinstance(value, Safe)):
            return value if isinstance(value, Safe) else Safe(joined([value]))
        if isinstance(value, Stream):
            return self._of_stream(name, value, arguments, named)
        if name == "format":
            return _formatted("%s", value, arguments, named)
        if name == "reverse" and type(value) is not str and kind_of(value) in (None, Kind.TEXT):
            raise NotUnderstood("the filter reverse of what may be a text")
        if name in _LAZY or (name == "reverse" and type(value) is not str):
            return self._lazily(name, value, arguments, named)
        found = self._apply(name, value, arguments, named)
        if found is not None:
            return found[0]
        if is_plain(value) and is_plain([*arguments, *named.values()]):
            return self._computed(lambda: self._call_filter(name, value, arguments, named))
        return self._derived("|", name, value, arguments, named)

    def method(self, owner: Any, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what `owner.name(arguments)` is."""
        if owner is None or isinstance(owner, Undefined | bool | int | float):
            raise Raised
        if name in MUTATORS and not (isinstance(owner, str | Text) or kind_of(owner) is Kind.TEXT):
            raise Raised  # the sandbox forbids it
        if isinstance(owner, Unknown) and owner.role is not None and (name, *arguments) == ("get", "role"):
            return owner.role
        if isinstance(owner, dict):
            return self._of_table(owner, name, arguments)
        if name in _VIEWS and isinstance(owner, Unknown) and not arguments:
            return Stream(unknown(owner), lazy=False)
        if name not in _MADE or not isinstance(owner, str | Text | Unknown | list | tuple):
            raise NotUnderstood(f"the method {name}")
        if name == "format":
            return _formatted("{}", owner, arguments, named)
        found = self._apply(name, owner, arguments, named)
        if found is not None:
            return found[0]
        if is_plain(owner) and is_plain([*arguments, *named.values()]):
            if not hasattr(owner, name):
                raise Raised
            return self._computed(lambda: getattr(owner, name)(*arguments, **named))
        if isinstance(owner, list | tuple):
            raise NotUnderstood(f"the method {name} of a list")
        return self._derived(".", name, owner, arguments, named)

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """Returns what an operator makes of two values."""
        if name == "Add" and (isinstance(a, Safe) or isinstance(b, Safe)):
            return Safe(unknown(a, b, kind=Kind.TEXT))
        if any(isinstance(value, Safe | Stream) for value in (a, b)):
            raise NotUnderstood("an operator on a text marked as safe, or on a generator")
        if is_plain(a) and is_plain(b):
            if name in ("Mul", "Pow") and any(_large(value) for value in (a, b)):
                raise NotUnderstood("arithmetic with large numbers")
            return self._computed(lambda: _BINARY[name](a, b))
        if name == "Add" and Kind.TEXT in (kind_of(a), kind_of(b)):
            return joined([a, b])  # or the template raises
        if name == "Add" and type(a) is type(b) and isinstance(a, list | tuple):
            return bounded(type(a)((*a, *b)))
        if name in ("Add", "Sub") and isinstance(a, Position) and type(b) is int:
            return Position(a.offset + (b if name == "Add" else -b))
        if name == "Sub" and isinstance(a, Position) and isinstance(b, Position):
            return a.offset - b.offset
        kind = kind_of(a) if kind_of(a) is kind_of(b) else None
        return derive(kind if kind in (Kind.NUMBER, Kind.LIST) else None, name, a, b)

    @cached_property
    def _context(self) -> Context:
        # Not before a filter is computed: it compiles a template.
        return self._environment.from_string("").new_context()

    def _call_filter(self, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return self._environment.call_filter(name, value, list(arguments), dict(named), context=self._context)

    def _computed(self, compute: Callable[[], Any]) -> Any:
        try:
            value = compute()
        except RecursionError:
            raise
        except Exception:  # whatever an operation makes of values that it doesn't take
            raise Raised from None
        if not is_plain(bounded(value)):
            raise NotUnderstood(f"a value of type {type(value).__name__}")
        return value

    def _derived(self, how: str, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(value, Safe) or any(isinstance(v, Safe | Stream) for v in (*arguments, *named.values())):
            raise NotUnderstood(f"{name} of a text marked as safe, or of a generator")
        kind = _MADE[name]
        if name in ("abs", "sum", "replace", "indent") and kind_of(value) is None:
            kind = None
        return derive(kind, how + name, value, *arguments, *chain.from_iterable(named.items()))

    def _apply(self, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any] | None:
        """The result of an operation where more is known of it than what it depends on."""
        if name in ("default", "d") and len(arguments) in (1, 2) and not named:
            return self._default(value, *arguments)
        if is_plain(value) and is_plain([*arguments, *named.values()]):
            return None
        if name in ("length", "count") and not arguments:
            return self._length(value)
        if name in ("first", "last") and isinstance(value, list | tuple | Messages | SplitText):
            return (item(value, 0 if name == "first" else -1),)
        if name == "tojson":
            return self._as_json(value, arguments, named)
        if name == "join" and not named and len(arguments) <= 1 and isinstance(value, list | tuple):
            between = (v for one in value for v in (arguments[0] if arguments else "", one))
            return (joined([*between][1:]),)
        if named or kind_of(value) is not Kind.TEXT:
            return None
        if name == "string":
            return (value,)
        if name in _STRIPS and len(arguments) <= 1:
            return self._stripped(name, value, *arguments)
        found = self._of_word(name, value, arguments)
        return found or (self._of_turn(name, value, arguments) if ends(value) else None)

    def _default(self, value: Any, other: Any, boolean: Any = False) -> tuple[Any] | None:
        if not isinstance(boolean, bool):
            return None
        if isinstance(value, Undefined):
            return (other,)
        known = self._comparisons.truth(value) if boolean else is_plain(value) or kind_of(value) is not None
        return ((value if known else other),) if known or (boolean and known is not None) else None

    def _length(self, value: Any) -> tuple[Any] | None:
        if isinstance(value, Messages):
            return (Position(len(value.tail) - value.drop),)
        if isinstance(value, list | tuple | dict):
            return (len(value),)
        if kind_of(value) is Kind.TEXT and self._comparisons.truth(value):
            return (replace(derive(Kind.NUMBER, "length", value), truth=True),)
        return None

    def _of_word(self, name: str, value: Any, arguments: Sequence[Any]) -> tuple[Any] | None:
        """Of a word that holds nothing of what an operation looks for."""
        if not arguments or not self._guard.spares(value):
            return None
        sought = arguments[0]
        made: dict[str, Any] = {
            "split": [value],
            "rsplit": [value],
            "partition": (value, "", ""),
            "rpartition": ("", "", value),
            "replace": value,
            "removeprefix": value,
            "removesuffix": value,
            "startswith": False,
            "endswith": False,
            "find": -1,
            "rfind": -1,
        }
        return (made[name],) if name in made and self._guard.spares(value, sought) else None

    def _of_turn(self, name: str, value: Any, arguments: Sequence[Any]) -> tuple[Any] | None:
        """Of a text that ends with the sentinel: operations that surely leave that end alone."""
        spared = not arguments or spares_sentinel(arguments[0])
        return (SplitText(sources_of(value)),) if name in ("split", "rsplit") and spared else None

    def _stripped(self, name: str, value: Any, letters: Any = None) -> tuple[Any] | None:
        if letters is not None and type(letters) is not str:
            return None
        parts: list[Any] = list(value.parts) if isinstance(value, Text) else [value]
        if name != "lstrip" and not self._strip_edge(parts, -1, letters):
            return None
        if name != "rstrip":
            parts = from_sentinel(parts)
            if not self._strip_edge(parts, 0, letters):
                return None
        return (joined(parts),)

    def _strip_edge(self, parts: list[Any], edge: int, letters: str | None) -> bool:
        """Strips the first or the last of a text's parts; says whether that was possible."""
        while parts:
            part = parts[edge]
            if not isinstance(part, str):
                if part.ends:
                    return letters is None or not _own(letters)
                return self._guard.spares_edge(part, letters)
            stripped = part.rstrip(letters) if edge else part.lstrip(letters)
            if stripped:
                parts[edge] = stripped
                return True
            del parts[edge]
        return True

    def _as_json(self, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any] | None:
        if not is_plain([*arguments, *named.values()]):
            return None

        def dump(known: Any) -> Any:
            return self._computed(lambda: self._call_filter("tojson", known, arguments, named))

        plain = [flag for flag in (False, True) if dump(_LETTERS) == json.dumps(_LETTERS, ensure_ascii=flag)]
        if isinstance(value, Unknown) and isinstance(value.key, TableWord):
            laid_out = plain and dump(_TABLE) == json.dumps(_TABLE, ensure_ascii=plain[0])
            key = JsonWord(value.key.message, value.key.key, plain[0], table=True) if laid_out else None
            return (Unknown(value.sources, Kind.TEXT, key),)
        made = _json(value, dump, f"json {arguments} {named}", ascii=plain[0] if plain else None)
        return None if made is None else (made,)

    def _of_table(self, owner: dict[str, Any], name: str, arguments: Sequence[Any]) -> Any:
        if name == "get" and 1 <= len(arguments) <= 2:
            if not is_plain(arguments[0]):
                return unknown(owner, *arguments)
            return owner.get(arguments[0], *arguments[1:])
        if name in _VIEWS and not arguments:
            view = unknown(owner) if isinstance(owner, Record) else tuple(getattr(owner, name)())
            return Stream(view, lazy=False)
        raise NotUnderstood(f"the method {name} of a table")

    def _of_stream(self, name: str, stream: Stream, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        items: Any = list(stream.items) if isinstance(stream.items, tuple) else stream.items
        if name in ("length", "count", "last") and stream.lazy:
            raise Raised
        if name in _LAZY:
            return self._lazily(name, items, arguments, named)
        if isinstance(items, Unknown) and name in ("list", "first", "last", "join", "sort", "length", "count"):
            return unknown(items, *arguments, *named.values(), kind=_MADE[name])
        if name in ("list", "first", "last", "join", "sort", "length", "count"):
            return self.filter(name, items, arguments, named)
        raise NotUnderstood(f"the filter {name} of a generator")

    def _lazily(self, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Stream:
        """Returns what filters make that are generators."""
        if name == "map" and arguments and (arguments[0] not in _MADE or arguments[0] in _LAZY):
            raise NotUnderstood(f"map by {arguments[0]}")
        at = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}.get(name)
        if at is not None and len(arguments) > at and not self._comparisons.knows(arguments[at]):
            raise NotUnderstood(f"{name} by {arguments[at]}")
        if is_plain(value) and is_plain([*arguments, *named.values()]):
            return Stream(
                tuple(self._computed(lambda: list(self._call_filter(name, value, arguments, named)))), lazy=True
            )
        if name == "items" and type(value) is dict:
            return Stream(tuple(value.items()), lazy=True)
        return Stream(unknown(value, *arguments, *named.values()), lazy=True)


def _large(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) > _MOST


def _own(letters: str) -> bool:
    """Whether the sentinel has one of these letters."""
    return any(not spares_sentinel(letter) for letter in letters)


_MARK = "qzW{}Wzq"
_MARKED = re.compile("qzW([0-9]+)Wzq")


def _formatted(field: str, pattern: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A text with fields, each of which prints a value as it is."""
    if type(pattern) is str and not named:
        constants = pattern.split(field)
        if len(constants) == len(arguments) + 1 and not re.search("[{}%]", "".join(constants)):
            filled = [v for constant, value in zip(constants, [*arguments, ""], strict=True) for v in (constant, value)]
            return joined(filled)
    return derive(Kind.TEXT, f"format {field}", pattern, *arguments, *chain.from_iterable(named.items()))


def _json(value: Any, dump: Callable[[Any], Any], how: str, *, ascii: bool | None) -> Any | None:
    """JSON text in which each unknown text stands for itself; None for a value with other unknowns in it."""
    found: list[Unknown] = []
    marked = _with_marks(value, found)
    if not is_plain(marked):
        return None
    pieces = _MARKED.split(str(dump(marked)))
    if len(pieces) != 2 * len(found) + 1:
        raise NotUnderstood("JSON of texts that look like this analysis' own marks")
    return joined(_in_json(found[int(p)], how, ascii) if i % 2 else p for i, p in enumerate(pieces))


def _with_marks(value: Any, found: list[Unknown]) -> Any:
    """A value with a mark for each unknown text in it."""
    if isinstance(value, Unknown) and value.kind is Kind.TEXT:
        return _marked(value, found)
    if type(value) is dict:
        return {key: _with_marks(item, found) for key, item in value.items()}
    return value


def _marked(value: Unknown, found: list[Unknown]) -> str:
    found.append(value)
    return _MARK.format(len(found) - 1)


def _in_json(value: Unknown, how: str, ascii: bool | None) -> Unknown:
    if isinstance(value.key, Word) and ascii is not None:
        # No `Word`, because what is assumed of a word is not true of what JSON makes of it.
        return replace(value, key=JsonWord(value.key.message, value.key.key, ascii))
    made: Unknown = derive(Kind.TEXT, how, value)
    return replace(made, ends=value.ends)
