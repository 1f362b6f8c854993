"""Slots are counted by rollout, and reserved by message."""

import pytest

from rolloutpool_common.queue.publisher import most_per_message
from rolloutpool_worker.queue.slots import Slots


def test_slots_are_counted_by_rollout_and_room_is_told_of_once() -> None:
    told: list[int] = []
    slots = Slots(16)
    slots.on_room = lambda: told.append(1)
    rooms = []
    for _ in range(4):
        rooms.append(slots.has_room)
        slots.take(4)
    rooms.append(slots.has_room)
    for _ in range(2):
        slots.give()
        rooms.append(slots.has_room)
    assert rooms == [True, True, True, True, False, True, True]
    assert told == [1]


def test_one_free_slot_is_room_for_a_message_and_then_there_is_none_until_all_of_it_has_a_slot() -> None:
    slots = Slots(16)
    slots.take(15)
    assert slots.has_room
    slots.take(4)
    rooms = []
    for _ in range(4):
        slots.give()
        rooms.append(slots.has_room)
    assert rooms == [False, False, False, True]


@pytest.mark.parametrize(
    ("slots", "per_message", "most"),
    [(256, 8, 8), (50, 8, 6), (16, 8, 2), (15, 8, 1), (1, 8, 1), (2000, 16, 16), (256, 1, 1)],
)
def test_a_message_brings_no_worker_more_than_an_eighth_of_its_slots(slots: int, per_message: int, most: int) -> None:
    assert most_per_message(slots, per_message) == most
