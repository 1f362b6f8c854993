"""Where two contexts part."""

from array import array

import pytest

from rolloutpool_common.tokens.comparison import first_difference


@pytest.mark.parametrize(
    ("ours", "theirs", "at"),
    [
        ([], [], None),
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [1], 0),
        ([1, 2, 3], [7, 2, 3], 0),
        ([1, 2, 3], [1, 7, 3], 1),
        ([1, 2, 3], [1, 2, 7], 2),
    ],
)
def test_the_first_difference(ours: list[int], theirs: list[int], at: int | None) -> None:
    assert first_difference(array("I", ours), array("I", theirs)) == at


@pytest.mark.parametrize("at", [0, 1, 49_999, 65_536, 99_999])
def test_it_is_found_in_long_contexts(at: int) -> None:
    ours = array("I", range(100_000))
    theirs = ours[:]
    theirs[at] += 1
    assert first_difference(ours, theirs) == at
