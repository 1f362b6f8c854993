"""A reply that names another request is noticed, whatever stands around the name."""

from typing import Any

import pytest

from rolloutpool_worker.policy.foreign_reply import ForeignReply, check_call, check_turn
from rolloutpool_worker.policy.turn_client import read_headers

UID = "b0c1d2-0"
NAME = f"{UID}/2.1.3"


@pytest.mark.parametrize(
    "reported",
    [
        NAME,
        f"cmpl-{NAME}",
        f"generate-tokens-{NAME}",
        f"cmpl-{NAME}-0",
        # The name is not given back: some versions make an id up, and gateways bring their own.
        None,
        "",
        7,
        [NAME],
        "generate-tokens-3f2a51c0",
        "cmpl-0b1e6f0a-6f3d-4f43-9f2e-1c7f0d2b9e55",
        "chatcmpl-1.2.3",
    ],
)
def test_a_call_has_its_own_reply(reported: Any) -> None:
    check_call((reported, None), NAME)


@pytest.mark.parametrize(
    "reported",
    [
        "cmpl-b0c1d2-1/2.1.3",
        f"cmpl-{UID}/1.1.3",
        f"cmpl-{UID}/2.2.3",
        f"cmpl-{UID}/2.1.31",
        f"cmpl-{UID}/2.1.2",
        f"9{NAME}",
        "generate-tokens-b9/1.1.1-0",
    ],
)
def test_another_calls_reply_is_foreign(reported: str) -> None:
    with pytest.raises(ForeignReply, match="the reply names another turn"):
        check_call((None, reported), NAME)


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
