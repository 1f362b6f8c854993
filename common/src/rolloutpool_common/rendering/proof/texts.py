"""Texts that are made of values: by a pattern with fields, or as JSON. Unknown texts in them stay what they are."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from rolloutpool_common.rendering.proof.claims import JsonWord, Word
from rolloutpool_common.rendering.proof.values import (
    Kind,
    NotUnderstood,
    Unknown,
    derive,
    is_plain,
    joined,
)

_MARK = "qzW{}Wzq"
_MARKED = re.compile("qzW([0-9]+)Wzq")


def formatted(field: str, pattern: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A text with fields, each of which prints a value as it is."""
    if type(pattern) is str and not named:
        constants = pattern.split(field)
        if len(constants) == len(arguments) + 1 and not re.search("[{}%]", "".join(constants)):
            filled = [v for constant, value in zip(constants, [*arguments, ""], strict=True) for v in (constant, value)]
            return joined(filled)
    return derive(Kind.TEXT, f"format {field}", pattern, *arguments, *chain.from_iterable(named.items()))


def as_json(value: Any, dump: Callable[[Any], Any], how: str, *, ascii: bool | None) -> Any | None:
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
