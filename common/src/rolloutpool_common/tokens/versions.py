"""How old the weights are that sampled something: versions as numbers.

A version is any text that a trainer gives its weights: `12`, `step-12`, a hash. The pool compares decimal integers
alone, so others have no number. `<=12` is what an engine says that names the weights at a call's end alone: at most 12,
and nobody knows how much older.

    "12", "13"    12 … 13        "12", "<=13"    unknown … 13        "12", "step-13"    unknown … unknown

A trainer knows its own versions, so for it the number at the end of one is the step (`version_number`).
"""

import re
from collections.abc import Iterable

_AT_MOST = "<="
_NUMBER_AT_END = re.compile(r"[0-9]+$")
_DIGITS = 18
"""Longer numbers do not fit into int64; such a version is a hash."""


def version_bounds(versions: Iterable[str | None]) -> tuple[int | None, int | None]:
    """Finds the oldest and the newest of some versions."""
    lows: list[int | None] = []
    highs: list[int | None] = []
    for version in versions:
        number = whole_version((version or "").removeprefix(_AT_MOST))
        highs.append(number)
        lows.append(None if version is None or version.startswith(_AT_MOST) else number)
    known_lows = [low for low in lows if low is not None]
    known_highs = [high for high in highs if high is not None]
    return (
        min(known_lows) if lows and len(known_lows) == len(lows) else None,
        max(known_highs) if highs and len(known_highs) == len(highs) else None,
    )


def whole_version(version: str | None) -> int | None:
    """Reads a version that is a decimal integer; None for any other."""
    # `isdigit` is true of other scripts' digits too.
    whole = version and version.isascii() and version.isdigit() and len(version) <= _DIGITS
    return int(version) if version and whole else None


def version_number(version: str | None) -> int:
    """Reads the number at the end of a policy version: 12 of `step-12`; -1 where there is none."""
    number = _NUMBER_AT_END.search(version or "")
    return int(number[0]) if number and len(number[0]) <= _DIGITS else -1
