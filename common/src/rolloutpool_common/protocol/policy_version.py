"""The number in a policy version, by which a trainer knows how old a sample is.

A policy version is any text that a trainer gives its weights: `step-12`, `12`, a hash. Where it ends with a number,
that number is taken for the step, so that versions can be subtracted from each other.
"""

import re

_NUMBER_AT_END = re.compile(r"[0-9]+$")
_DIGITS = 18
"""Longer numbers do not fit into int64; such a version is a hash, not a step."""


def version_number(version: str | None) -> int:
    """Reads the number at the end of a policy version: 12 of `step-12`; -1 where there is none."""
    number = _NUMBER_AT_END.search(version or "")
    return int(number[0]) if number and len(number[0]) <= _DIGITS else -1
