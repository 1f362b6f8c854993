"""The pool's ids have one form, which no caller's name can be taken for by accident."""

import pytest

from rolloutpool_common.protocol.ids import has_form_of_our_ids, is_batch_id, new_batch_id


def test_a_new_batch_id_is_one_and_comes_once() -> None:
    first, second = new_batch_id(), new_batch_id()
    assert first != second
    assert is_batch_id(first)
    assert has_form_of_our_ids(first)
    assert has_form_of_our_ids(f"{first}-12")
    assert not is_batch_id(f"{first}-12")


@pytest.mark.parametrize(
    "text", ["", "b", "r0", "b" + "0" * 31, "b" + "0" * 33, "B" + "0" * 32, "b" + "0" * 32 + "-", "b" + "0" * 32 + "\n"]
)
def test_other_texts_are_callers_names(text: str) -> None:
    assert not is_batch_id(text)
    assert not has_form_of_our_ids(text)
