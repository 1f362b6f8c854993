"""`PromptDifference`: which ids are kept of two prompts that part, and that they are bounded."""

import pytest

from rolloutpool_common.protocol.drift import IDS_BEFORE, IDS_FROM, PromptDifference


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_the_ids_around_the_first_difference_are_kept(prefix: int) -> None:
    expected, echoed = [1, 2, 3, 10, 11], [1, 2, 3, 7]
    found = PromptDifference.at(3, expected, echoed[prefix:], prefix=prefix)
    assert found == PromptDifference(3, [1, 2, 3], [10, 11], [7])


@pytest.mark.parametrize("prefix", [0, 99_000])
def test_of_long_prompts_a_few_ids_are_kept(prefix: int) -> None:
    expected = list(range(200_000))
    echoed = [*expected[:100_000], *[0] * 100_000]
    found = PromptDifference.at(100_000, expected, echoed[prefix:], prefix=prefix)
    assert found.before == expected[100_000 - IDS_BEFORE : 100_000]
    assert found.expected == expected[100_000 : 100_000 + IDS_FROM]
    assert found.echoed == [0] * IDS_FROM


@pytest.mark.parametrize(
    ("expected", "echoed", "position"), [([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1], [2], 0), ([1], [], 0)]
)
def test_a_prompt_may_end_where_the_other_goes_on(expected: list[int], echoed: list[int], position: int) -> None:
    found = PromptDifference.at(position, expected, echoed)
    assert [*found.before, *found.expected] == expected
    assert [*found.before, *found.echoed] == echoed
