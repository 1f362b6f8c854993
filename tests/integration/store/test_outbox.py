"""Batches take turns filling a bounded window, claims make room in it, and what was published and lost comes back."""

from collections import Counter

from redis.asyncio import Redis
from tests.support.batches import announce, claim, new_batch, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import ClaimRefused, Store, Ticket
from rolloutpool_common.store.keys import DELAYED, published, split_uid
from rolloutpool_common.store.outbox import PER_WORKER


async def take(store: Store, limit: int = 5000, priority: Priority = Priority.DEFAULT) -> list[Ticket]:
    return await store.outbox.reserve(priority, limit)


async def test_a_late_batch_gets_the_window_s_next_places(store: Store) -> None:
    uids = await submit(store, 3000)
    await take(store)
    late = new_batch(5)
    await store.batches.submit(late)
    for uid in uids[:10]:
        await claim(store, uid)
    assert [ticket.batch_id for ticket in await take(store)].count(late.batch_id) == 5


async def test_lost_tickets_come_back_and_only_those(store: Store) -> None:
    uids = await submit(store, 4)
    (old,) = await take(store, 1)
    between = await store.outbox.now_ms()
    while await store.outbox.now_ms() < between + 2:
        pass
    await take(store, 2)
    assert await store.outbox.lost(Priority.DEFAULT, between + 1) == 1
    assert await store.outbox.lost(Priority.DEFAULT, between + 1) == 0
    # In front, because it has waited longest.
    assert [ticket.index for ticket in await take(store, 2)] == [old.index, 3]
    await claim(store, uids[0])
    assert await store.outbox.lost(Priority.DEFAULT, await store.outbox.now_ms() + 1000) == 3


async def test_runs_share_by_weight_and_their_batches_follow_each_other(store: Store) -> None:
    heavy = [new_batch(60, run="train", weight=3) for _ in range(2)]
    light = new_batch(60, run="eval")
    for batch in (*heavy, light):
        await store.batches.submit(batch)
    shares = Counter(ticket.batch_id for ticket in await take(store, 40))
    assert shares == {heavy[0].batch_id: 30, light.batch_id: 10}
    rest = Counter(ticket.batch_id for ticket in await take(store, 80))
    # The first batch's other 30, then the second of the same run; never more of the run for having two batches.
    assert rest == {heavy[0].batch_id: 30, heavy[1].batch_id: 30, light.batch_id: 20}


async def test_weights_hold_however_few_places_come_free_at_a_time(store: Store, raw: Redis) -> None:
    heavy, light = new_batch(60, run="train", weight=3), new_batch(60, run="eval")
    for batch in (heavy, light):
        await store.batches.submit(batch)
    order = [ticket.batch_id for _ in range(40) for ticket in await take(store, 1)]
    assert order == [*[heavy.batch_id] * 3, light.batch_id] * 10
    shares = Counter([ticket.batch_id for _ in range(20) for ticket in await take(store, 2)])
    assert shares == {heavy.batch_id: 30, light.batch_id: 10}
    # In the middle of its turn a run may end, and another one begins with a turn of its own.
    await take(store, 1)
    await store.batches.cancel(heavy.batch_id)
    third = new_batch(20, run="other", weight=2)
    await store.batches.submit(third)
    order = [ticket.batch_id for _ in range(6) for ticket in await take(store, 1)]
    assert order == [light.batch_id, third.batch_id, third.batch_id] * 2
    # What is noted of a turn does not outlive it for long.
    await take(store, 1)
    await take(store, 1)
    assert await raw.ttl("rp:turn:default") > 0


async def test_the_window_is_bounded_and_a_claim_makes_room(store: Store) -> None:
    uids = await submit(store, PER_WORKER + 2)
    assert len(await take(store)) == PER_WORKER
    assert await take(store) == []
    assert (await claim(store, uids[0])).more_waiting
    assert [ticket.index for ticket in await take(store)] == [PER_WORKER]


async def test_fresh_work_that_met_a_worker_declared_dead_is_published_again(store: Store, raw: Redis) -> None:
    # It was in no queue for ever: 84 of 1,500 rollouts while workers were scaled on a busy machine.
    (uid,) = await submit(store)
    await announce(store, "dead")
    await store.workers.condemn("dead")
    assert len(await take(store)) == 1
    assert await store.rollouts.claim(uid, "dead") == ClaimRefused.CONDEMNED
    # Nowhere else would anybody find it.
    assert await raw.zscore("rp:delayed", uid) is not None
    await raw.zadd("rp:delayed", {uid: 1})
    batch_id, index = split_uid(uid) or ("", 0)
    assert await store.outbox._connection.script("requeue", batch_id, index, DELAYED, 1, "") == 1
    assert len(await take(store)) == 1


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
    (ticket,) = await take(store)
    lost = ticket.batch_id, ticket.index, published(Priority.DEFAULT)
    for before_ms, requeued in ((1, 0), (0, 1)):
        score = f"{ticket.published_ms - before_ms:.0f}"
        assert await store.outbox._connection.script("requeue", *lost, score, "republished") == requeued
