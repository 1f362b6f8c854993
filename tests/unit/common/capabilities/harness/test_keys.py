"""Which keys are a session's."""

import pytest

from rolloutpool_common.capabilities.harness.keys import make_key, place_of

SECRET, OTHER = b"a" * 32, b"b" * 32


def test_a_key_names_its_place() -> None:
    assert place_of(SECRET, "b-0", make_key(SECRET, "b-0", 3)) == 3


@pytest.mark.parametrize(
    "key",
    [
        "",
        "rp-",
        "rp-1",
        "rp-1-",
        make_key(OTHER, "b-0", 1),
        make_key(SECRET, "b-1", 1),
        make_key(SECRET, "b-0", 1).replace("rp-1-", "rp-2-"),
        make_key(SECRET, "b-0", 1).replace("rp-1-", "rp-01-"),
        make_key(SECRET, "b-0", 1).replace("rp-1-", "rp-¹-"),
        make_key(SECRET, "b-0", 1).replace("rp-1-", f"rp-{'9' * 5000}-"),
        make_key(SECRET, "b-0", 1).removeprefix("rp-"),
        make_key(SECRET, "b-0", 1) + "0",
        make_key(SECRET, "b-0", 1).upper(),
    ],
)
def test_what_the_pool_has_not_made_for_this_rollout_is_no_key(key: str) -> None:
    assert place_of(SECRET, "b-0", key) is None
