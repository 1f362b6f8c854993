"""An answer of the pool is read by clients that are older than the pool, and by those that expect a dictionary."""

import pytest

from rolloutpool_common.protocol.answer import Answer


class Example(Answer):
    """An answer with one field."""

    total: int


def test_unknown_fields_are_ignored() -> None:
    assert Example.model_validate({"total": 3, "added_later": 1}) == Example(total=3)


def test_fields_are_read_by_name_as_in_a_dictionary() -> None:
    assert Example(total=3)["total"] == 3
    with pytest.raises(KeyError):
        Example(total=3)["model_fields"]
