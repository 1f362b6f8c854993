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
