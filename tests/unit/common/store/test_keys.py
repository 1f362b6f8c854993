"""Uids are batch and index; what is no uid is recognised as none."""

import pytest

from rolloutpool_common.store.keys import split_uid, uid_of


@pytest.mark.parametrize(("batch_id", "index"), [("b0", 0), ("b" + "f" * 32, 9999), ("with-dash", 7)])
def test_a_uid_comes_apart_as_it_was_put_together(batch_id: str, index: int) -> None:
    assert split_uid(uid_of(batch_id, index)) == (batch_id, index)


@pytest.mark.parametrize("uid", ["", "b", "-", "b-", "b-x", "b-1.0", "b- 1", "b-+1", "b-\uff11", "b-1234567"])
def test_what_is_no_uid(uid: str) -> None:
    assert split_uid(uid) is None
