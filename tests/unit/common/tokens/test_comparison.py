"""Where two contexts part."""

from array import array

import pytest

from rolloutpool_common.tokens.comparison import first_difference


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [], 0),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 9], 2),
    ],
)
def test_the_first_difference_or_the_end_of_the_shorter(ours: list[int], theirs: list[int], place: int | None) -> None:
    assert first_difference(array("I", ours), array("I", theirs)) == place


@pytest.mark.parametrize("place", [0, 1, 499, 500, 998, 999])
def test_it_is_found_wherever_it_is(place: int) -> None:
    ours = array("I", range(1000))
    theirs = ours[:]
    theirs[place] += 1
    assert first_difference(ours, theirs) == place
