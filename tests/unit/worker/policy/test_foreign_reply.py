"""A reply that names another turn is noticed."""

import pytest

from rolloutpool_worker.policy.foreign_reply import ForeignReply, check_turn
from rolloutpool_worker.policy.turn_client import read_headers


@pytest.mark.parametrize("said", [[], ["b1/1"], ["b1/1", "b1/1"], ["b1/1, b1/1"]])
def test_a_turn_has_its_own_reply(said: list[str]) -> None:
    check_turn(read_headers([(b"x-turn-key", name.encode()) for name in said]), "b1/1")


@pytest.mark.parametrize("said", [["b1/2"], ["b1/1/2"], ["b1/1", "b2/1"], ["b1/1, b2/1"], [""]])
def test_another_turns_reply_is_foreign(said: list[str]) -> None:
    with pytest.raises(ForeignReply):
        check_turn(read_headers([(b"X-Turn-Key", name.encode()) for name in said]), "b1/1")


def test_a_reply_that_names_a_turn_is_none_to_a_request_without_one() -> None:
    """A question for a trainer's health, or a call of an engine, has no key."""
    with pytest.raises(ForeignReply):
        check_turn(read_headers([(b"X-Turn-Key", b"b1/1")]), None)
