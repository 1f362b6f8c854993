"""The number at the end of a policy version."""

import pytest

from rolloutpool_common.tokens.versions import version_number


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("step-12", 12),
        ("12", 12),
        ("0", 0),
        ("007", 7),
        ("v2.5", 5),
        ("step-12-final", -1),
        ("", -1),
        (None, -1),
        ("a" * 40, -1),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, -1),
        ("step-\N{ARABIC-INDIC DIGIT ONE}", -1),
    ],
)
def test_the_number_at_the_end_is_the_step(version: str | None, number: int) -> None:
    assert version_number(version) == number
