"""Slots are counted by rollout, and reserved by message."""

import pytest

from rolloutpool_common.queue.publisher import most_per_message
from rolloutpool_worker.queue.slots import Slots


def test_slots_are_counted_by_rollout_and_room_is_told_of_once() -> None:
    told: list[int] = []
    slots = Slots(16, 4)
    slots.on_room = lambda: told.append(1)
    for _ in range(3):
        slots.take(4)
    assert slots.has_room
    slots.take(4)
    rooms = [slots.has_room]
    for _ in range(4):
        slots.give()
        rooms.append(slots.has_room)
    assert rooms == [False, False, False, False, True]
    assert told == [1]
    slots.give()
    assert told == [1]


@pytest.mark.parametrize(
    ("slots", "per_message", "most"),
    [(256, 8, 8), (50, 8, 6), (16, 8, 2), (15, 8, 1), (1, 8, 1), (2000, 16, 16), (256, 1, 1)],
)
def test_a_message_brings_no_worker_more_than_an_eighth_of_its_slots(slots: int, per_message: int, most: int) -> None:
    assert most_per_message(slots, per_message) == most
