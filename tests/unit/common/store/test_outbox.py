"""Batches take turns filling a bounded window, and claims make room in it."""

from tests.support.batches import claim, new_batch, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store
from rolloutpool_common.store.outbox import PER_WORKER


async def test_the_window_is_bounded_and_a_claim_makes_room(store: Store) -> None:
    uids = await submit(store, PER_WORKER + 2)
    assert len(await store.outbox.reserve(Priority.DEFAULT, 5000)) == PER_WORKER
    assert await store.outbox.reserve(Priority.DEFAULT, 5000) == []
    assert (await claim(store, uids[0])).more_waiting
    assert [ticket.index for ticket in await store.outbox.reserve(Priority.DEFAULT, 5000)] == [PER_WORKER]


async def test_two_batches_take_turns(store: Store) -> None:
    large, small = new_batch(100), new_batch(3)
    await store.batches.submit(large)
    await store.batches.submit(small)
    tickets = await store.outbox.reserve(Priority.DEFAULT, 6)
    assert [ticket.index for ticket in tickets if ticket.batch_id == small.batch_id] == [0, 1, 2]


async def test_priority_classes_have_windows_of_their_own(store: Store) -> None:
    await submit(store, 1, priority=Priority.HIGH)
    assert await store.outbox.reserve(Priority.DEFAULT, 9) == []
    assert len(await store.outbox.reserve(Priority.HIGH, 9)) == 1


async def test_all_classes_are_asked_at_once_and_say_what_is_left(store: Store) -> None:
    await submit(store, 1, priority=Priority.HIGH)
    await submit(store, PER_WORKER + 1)
    reserved = {one.priority: one for one in await store.outbox.reserve_all(5000)}
    assert list(reserved) == list(Priority)
    assert {priority: (len(one.tickets), one.more_waiting) for priority, one in reserved.items()} == {
        Priority.HIGH: (1, False),
        Priority.DEFAULT: (PER_WORKER, True),
        Priority.LOW: (0, False),
    }
