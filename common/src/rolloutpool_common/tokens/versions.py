"""How old the weights are that sampled something: versions as numbers.

A version is any text that a trainer gives its weights. Only decimal integers can be compared, so others have no number.
`<=12` is what an engine says that names the weights at a call's end alone: at most 12, and nobody knows how much older.

    "12", "13"    12 … 13        "12", "<=13"    unknown … 13        "12", "step-13"    unknown … unknown
"""

from collections.abc import Iterable

_AT_MOST = "<="
_DIGITS = 18
"""Longer numbers do not fit into int64; such a version is a hash."""


def version_bounds(versions: Iterable[str | None]) -> tuple[int | None, int | None]:
    """Finds the oldest and the newest of some versions."""
    lows: list[int | None] = []
    highs: list[int | None] = []
    for version in versions:
        number = _number((version or "").removeprefix(_AT_MOST))
        highs.append(number)
        lows.append(None if version is None or version.startswith(_AT_MOST) else number)
    known_lows = [low for low in lows if low is not None]
    known_highs = [high for high in highs if high is not None]
    return (
        min(known_lows) if lows and len(known_lows) == len(lows) else None,
        max(known_highs) if highs and len(known_highs) == len(highs) else None,
    )


def _number(text: str) -> int | None:
    # `isdigit` is true of other scripts' digits too.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
