"""A grade that is late for a sibling's sake is no loss, and one that is late without such a sibling is."""

import pytest
from tests.chaos.grades import waited_for_sibling
from tests.chaos.manners import Manner


@pytest.mark.parametrize(
    ("category", "siblings", "expected"),
    [
        ("group_grade_late", [Manner.STEADY, Manner.DEAF], True),
        ("group_grade_late", [Manner.STEADY, Manner.STEADY], False),
        ("grade_late", [Manner.STEADY, Manner.DEAF], False),
        (None, [Manner.STEADY, Manner.DEAF], False),
    ],
)
def test_only_a_sibling_that_does_not_end_in_time_excuses_a_late_grade(
    category: str | None, siblings: list[Manner], expected: bool
) -> None:
    result = {"failure": None if category is None else {"category": category}}
    assert waited_for_sibling(result, "b g", {"b g": siblings}) is expected
    assert not waited_for_sibling(result, None, {"b g": siblings})
