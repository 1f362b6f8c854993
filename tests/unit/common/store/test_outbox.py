"""Batches take turns filling a bounded window, and claims make room in it."""

from tests.support.batches import announce, claim, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import ClaimRefused, Store
from rolloutpool_common.store.keys import DELAYED, published, split_uid
from rolloutpool_common.store.outbox import PER_WORKER


async def test_the_window_is_bounded_and_a_claim_makes_room(store: Store) -> None:
    uids = await submit(store, PER_WORKER + 2)
    assert len(await store.outbox.reserve(Priority.DEFAULT, 5000)) == PER_WORKER
    assert await store.outbox.reserve(Priority.DEFAULT, 5000) == []
    assert (await claim(store, uids[0])).more_waiting
    assert [ticket.index for ticket in await store.outbox.reserve(Priority.DEFAULT, 5000)] == [PER_WORKER]


async def test_fresh_work_that_met_a_worker_declared_dead_is_published_again(store: Store) -> None:
    # It was in no queue for ever: 84 of 1,500 rollouts while workers were scaled on a busy machine.
    (uid,) = await submit(store)
    await announce(store, "dead")
    await store.workers.condemn("dead")
    assert len(await store.outbox.reserve(Priority.DEFAULT, 9)) == 1
    assert await store.rollouts.claim(uid, "dead") == ClaimRefused.CONDEMNED
    # Nowhere else would anybody find it.
    assert await store.outbox._redis.zscore("rp:delayed", uid) is not None
    await store.outbox._redis.zadd("rp:delayed", {uid: 1})
    batch_id, index = split_uid(uid) or ("", 0)
    assert await store.outbox._connection.script("requeue", batch_id, index, DELAYED, 1, "") == 1
    assert len(await store.outbox.reserve(Priority.DEFAULT, 9)) == 1


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


async def test_a_ticket_that_was_published_again_meanwhile_is_not_the_lost_one(store: Store) -> None:
    await submit(store)
    (ticket,) = await store.outbox.reserve(Priority.DEFAULT, 9)
    lost = ticket.batch_id, ticket.index, published(Priority.DEFAULT)
    for before_ms, requeued in ((1, 0), (0, 1)):
        score = f"{ticket.published_ms - before_ms:.0f}"
        assert await store.outbox._connection.script("requeue", *lost, score, "republished") == requeued
