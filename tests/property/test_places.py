"""Which places may stand together; that the scripts keep to it is shown by the store's state machine."""

import pytest
from tests.support.places import Place, fault_in


@pytest.mark.parametrize(
    "places",
    [
        {Place.OUTBOX},
        {Place.RUNNING},
        {Place.RUNNING, Place.OUTBOX},
        {Place.HELD},
        {Place.CANCELLING},
        {Place.OVERDUE, Place.DELAYED},
        {Place.PRECANCELLED},
    ],
)
def test_one_owner_is_right(places: set[Place]) -> None:
    assert fault_in(places) is None


def test_none_and_two_are_wrong() -> None:
    assert fault_in(set()) == "it is nowhere: nobody would ever run or end it"
    assert fault_in({Place.RUNNING, Place.PUBLISHED, Place.OUTBOX}) == "it is in published and running at once"
