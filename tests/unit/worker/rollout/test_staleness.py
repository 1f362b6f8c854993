"""A rollout's lag is measured against the newest version that its endpoint has shown, where versions are numbers."""

import pytest

from rolloutpool_worker.rollout.staleness import PolicyVersions


def test_the_lag_is_that_of_the_first_turn() -> None:
    versions = PolicyVersions()
    assert versions.lag("a", ["7", "7", "9"]) == 2
    assert versions.lag("a", ["9"]) == 0
    assert versions.lag("a", ["4", "4"]) == 5
    assert versions.lag("b", ["4", "4"]) == 0


@pytest.mark.parametrize("turns", [[], [None], ["1", None], ["v1"], ["1.5"], ["-1"], ["²"], ["9" * 5000]])
def test_what_is_no_number_has_no_lag(turns: list[str | None]) -> None:
    versions = PolicyVersions()
    assert versions.lag("a", turns) is None
    assert versions.lag("a", ["1"]) == 0


def test_endpoints_are_forgotten_and_not_gathered() -> None:
    versions = PolicyVersions()
    for number in range(10_000):
        versions.lag(str(number), ["5"])
    assert versions.lag("0", ["3"]) == 0
    assert versions.lag("9999", ["3"]) == 2
