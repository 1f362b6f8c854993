"""Says what conditions say of values: True, False, or an unknown."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import Environment
from jinja2.tests import TESTS

from rolloutpool_common.rendering.proof.claims import Word
from rolloutpool_common.rendering.proof.values import (
    LEAST,
    Function,
    Kind,
    Loop,
    Macro,
    Messages,
    Namespace,
    NotUnderstood,
    Position,
    Raised,
    Record,
    Safe,
    SplitText,
    Stream,
    Text,
    Unknown,
    derive,
    is_plain,
    kind_of,
    same,
)

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_TURNED = {"eq": "eq", "lt": "gt", "lteq": "gteq", "gt": "lt", "gteq": "lteq"}
_KIND_TESTS = {
    "string": {Kind.TEXT},
    "mapping": {Kind.MAPPING},
    "number": {Kind.NUMBER, Kind.BOOL},
    "boolean": {Kind.BOOL},
    "iterable": {Kind.TEXT, Kind.LIST, Kind.MAPPING},
    "sequence": {Kind.TEXT, Kind.LIST, Kind.MAPPING},
    "none": set[Kind](),
    "undefined": set[Kind](),
    "defined": set(Kind),
}


class Assumptions:
    """Holds what is assumed of the new messages' words, and then has to be checked of them."""

    def __init__(self, *, active: bool) -> None:
        """Nothing is assumed where it isn't active."""
        self._active = active
        self.literals: set[str] = set()
        self.trimmed: set[Word] = set()
        """Those that are assumed to have no white space at their edges."""
        self.made = False
        """Whether anything was assumed."""

    def spares(self, value: Any, *literals: Any) -> bool:
        """Whether a value is a word that is assumed to hold none of these texts, and not to be empty."""
        if not (self._active and isinstance(value, Unknown) and isinstance(value.key, Word)):
            return False
        if not all(type(literal) is str and literal for literal in literals):
            return False
        self.literals.update(literals)
        self.made = True
        return True

    def spares_edge(self, value: Any, letters: str | None) -> bool:
        """Whether a value is a word whose edges are assumed to have none of these letters; None: no white space."""
        if not self.spares(value, *(letter for letter in letters or "" if not letter.isspace())):
            return False
        if letters is None or any(map(str.isspace, letters)):
            self.trimmed.add(value.key)
        return True


class Comparisons:
    """Compares values, under a guard."""

    def __init__(self, environment: Environment, guard: Assumptions) -> None:
        """The environment has the tests."""
        self._environment = environment
        self._guard = guard

    def truth(self, value: Any) -> bool | None:
        """Whether a value is true; None where that isn't known."""
        match value:
            case Unknown():
                return True if self._guard.spares(value) else value.truth
            case Text(parts):
                return True if any(isinstance(part, str) or self.truth(part) for part in parts) else None
            case SplitText():
                return None  # of white space alone there is none
            case Position(offset):
                return True if LEAST + offset > 0 else None
            case Messages(drop, tail, least=least):
                return True if tail or drop < least else None
            case Safe(inner):
                return self.truth(inner)
            case Stream(items, lazy):
                return True if lazy else self.truth(items)
            case Namespace() | Macro() | Function() | Loop():
                return True
        return bool(value)

    def compare(self, name: str, a: Any, b: Any) -> bool | Unknown:
        """Returns what `a name b` says, with the names of Jinja's syntax tree."""
        if any(isinstance(value, Namespace | Macro | Function | Loop | Safe | Stream) for value in (a, b)):
            raise NotUnderstood("a comparison of a namespace, a function or a generator")
        if name in ("ne", "notin"):
            result = self.compare({"ne": "eq", "notin": "in"}[name], a, b)
            return derive(Kind.BOOL, "not", result) if isinstance(result, Unknown) else not result
        if is_plain(a) and is_plain(b):
            try:
                return bool(a in b if name == "in" else _OPERATORS[name](a, b))
            except TypeError:
                raise Raised from None
        found = self._contains(b, a) if name == "in" else self._ordered(name, a, b)
        if found is None and name == "eq":
            found = self._equal(a, b)
        return derive(Kind.BOOL, name, a, b) if found is None else found

    def _contains(self, whole: Any, item: Any) -> bool | None:
        if isinstance(whole, list | tuple):
            equal = [self.compare("eq", item, other) for other in whole]
            return True if any(e is True for e in equal) else False if all(e is False for e in equal) else None
        if isinstance(whole, dict):
            return item in whole if type(item) is str else None
        if type(item) is not str:
            return None
        return False if self._guard.spares(whole, item) else None

    def _ordered(self, name: str, a: Any, b: Any) -> bool | None:
        if isinstance(a, Position) and isinstance(b, Position):
            return bool(_OPERATORS[name](a.offset, b.offset))
        if _at_least(b) is not None:
            name, a, b = _TURNED[name], b, a
        least = _at_least(a)
        if least is not None and isinstance(b, int):
            if least > b:
                return name in ("gt", "gteq")
            return {"gteq": True, "lt": False}.get(name) if least == b else None
        return None

    def _equal(self, a: Any, b: Any) -> bool | None:
        if isinstance(a, Record) or isinstance(b, Record):
            return None
        if not isinstance(a, Messages | Text) and type(a) is type(b) and self._surely_same(a, b):
            return True
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Unknown) and type(y) is str and (y in x.never or (not y and self._guard.spares(x))):
                return False
        return None

    @staticmethod
    def _surely_same(a: Any, b: Any) -> bool:
        """As `same`, but one unknown stands for many values where a loop was run for all of its items at once."""
        return isinstance(a, Unknown) and a.key is not None and same(a, b)

    @staticmethod
    def knows(name: Any) -> bool:
        """Whether `test` takes this one."""
        return name in TESTS and name not in ("filter", "test", "sameas")

    def test(self, name: str, value: Any, arguments: Sequence[Any]) -> bool | Unknown:
        """Returns what `value is name(arguments)` says."""
        if not self.knows(name):
            raise NotUnderstood(f"the test {name}")
        if is_plain(value) and all(map(is_plain, arguments)):
            try:
                return bool(self._environment.call_test(name, value, list(arguments)))
            except Exception:  # whatever a test makes of a value that it doesn't take
                raise Raised from None
        if isinstance(value, Namespace | Macro | Function | Loop | Stream | Safe):
            if name in ("defined", "undefined", "none"):
                return name == "defined"
            raise NotUnderstood(f"the test {name} of a namespace, a function or a generator")
        kind = kind_of(value)
        if name in _KIND_TESTS and kind is not None:
            return kind in _KIND_TESTS[name]
        return derive(Kind.BOOL, "is " + name, value, *arguments)


def _at_least(number: Any) -> int | None:
    """Returns what an index is at least, or the length of a text that is not empty."""
    if isinstance(number, Position):
        return LEAST + number.offset
    return 1 if isinstance(number, Unknown) and number.kind is Kind.NUMBER and number.truth else None
