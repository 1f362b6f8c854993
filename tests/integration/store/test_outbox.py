"""Batches take turns filling a bounded window; what was published and lost comes back, once."""

from collections import Counter

from redis.asyncio import Redis
from tests.support.batches import claim, new_batch, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store, Ticket


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
