"""The ids by which a session knows its calls."""

import pytest

from rolloutpool_common.capabilities.harness.given_calls import given_id, place_of_call


def test_a_call_is_known_by_its_id() -> None:
    assert place_of_call(given_id(17, 3)) == (17, 3)


@pytest.mark.parametrize(
    "given", ["", "call_1", "call_1_", "call_a_1", "toolu_1_1", "call_1_1 ", f"call_{'1' * 300}_0"]
)
def test_other_ids_are_nobody_s(given: str) -> None:
    assert place_of_call(given) is None
