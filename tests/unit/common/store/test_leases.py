"""Leases: a batch that nobody reads is cancelled, and no gap in anybody's view counts as silence."""

from tests.support.batches import OWNER, batch_of, claim, new_batch, status_of, submit, uids_of
from tests.support.served_clock import ServedClock

from rolloutpool_common.protocol.batch import CancelCause
from rolloutpool_common.store import NewBatch, Store

LEASE = 30.0


async def leased(store: Store, **options: object) -> NewBatch:
    batch = new_batch(2, lease_s=LEASE, **options)  # type: ignore[arg-type]
    await store.batches.submit(batch)
    return batch


async def left_s(store: Store, batch: NewBatch) -> float:
    redis = store.connection.redis
    due, clock = await redis.zscore("rp:leases", batch.batch_id), await redis.hget("rp:served", "clock_ms")
    return (float(due) - int(clock)) / 1000


async def test_a_batch_that_nobody_reads_is_cancelled(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch, plain = await leased(store), new_batch(1)
    await store.batches.submit(plain)
    assert await reconciler.seconds(28) == []
    assert await reconciler.seconds(3) == [batch.batch_id]
    # Nothing of it can start from this step on, and what cancels the rest would be found again.
    assert await store.rollouts.claim(uids_of(batch)[0], "w1") == "ended"
    assert await store.connection.redis.smembers("rp:cancelling") == {batch.batch_id.encode()}
    assert await store.batches.cancel(batch.batch_id, CancelCause.LEASE) == 2
    status = await status_of(store, batch.batch_id)
    assert status.cancel_cause is CancelCause.LEASE
    assert (await store.totals.read()).totals["cancelled_for:lease"] == 1
    await claim(store, uids_of(plain)[0])


async def test_a_read_by_its_owner_renews_it_and_nobody_else_s(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store)
    await reconciler.seconds(20)
    assert await store.batches.total(batch.batch_id, None, reader="admin") == 2
    assert await store.batches.total(batch.batch_id, "admin", reader="admin") is None
    assert await left_s(store, batch) < 11
    assert await store.batches.total(batch.batch_id, OWNER, reader=OWNER) == 2
    assert await left_s(store, batch) == LEASE
    assert await reconciler.seconds(29) == []
    assert await reconciler.seconds(2) == [batch.batch_id]


async def test_what_has_ended_has_no_lease_and_stays(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store)
    for uid in uids_of(batch):
        await store.rollouts.cancel(uid)
    await store.batches.total(batch.batch_id, OWNER, reader=OWNER)
    assert await store.connection.redis.exists("rp:leases") == 0
    assert await reconciler.seconds(40) == []
    # And a lease that is over does not begin again, although its reader comes back.
    late = await leased(store)
    assert await reconciler.seconds(31) == [late.batch_id]
    await store.batches.total(late.batch_id, OWNER, reader=OWNER)
    assert await store.connection.redis.exists("rp:leases") == 0


async def test_the_clock_stands_still_while_redis_is_away(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store)
    await reconciler.seconds(25)
    # Redis did not answer for ten minutes; the tick that fell into this time failed.
    assert await reconciler.tick(600.0, serving=False) == []
    assert 3 < await left_s(store, batch) < 6
    # Its reader waits before it asks again, so for some seconds nothing ends.
    assert await reconciler.seconds(9) == []
    assert await reconciler.seconds(3) == [batch.batch_id]


async def test_the_clock_stands_still_while_no_process_reconciles(store: Store) -> None:
    await (first := ServedClock(store)).tick()
    batch = await leased(store)
    await first.seconds(25)
    second = ServedClock(store, "p2")
    assert await second.tick(3600.0) == []
    assert 3 < await left_s(store, batch) < 6


async def test_a_process_that_stood_still_counts_nothing(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store)
    before = await left_s(store, batch)
    assert await reconciler.tick(7200.0) == []
    # Redis' clock was set back.
    assert await reconciler.tick(-7200.0) == []
    assert await left_s(store, batch) == before


async def test_a_start_of_redis_is_a_gap(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store)
    await reconciler.seconds(29)
    await store.connection.redis.hset("rp:epoch", "number", 7)
    assert await reconciler.seconds(5) == []
    assert await left_s(store, batch) < 0


async def test_two_leaders_by_mistake_end_nothing(store: Store) -> None:
    one, two = ServedClock(store), ServedClock(store, "p2")
    await leased(store)
    for _ in range(60):
        assert await one.tick(1.0) == []
        assert await two.tick(0.0) == []


async def test_a_deleted_batch_is_passed_over(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    await store.connection.redis.zadd("rp:leases", {"b" + "0" * 32: 1})
    assert await reconciler.seconds(12) == ["b" + "0" * 32]
    assert await store.connection.redis.exists("rp:batch:b" + "0" * 32) == 0
    assert await store.batches.cancel("b" + "0" * 32, CancelCause.LEASE) == 0


async def test_is_held_by(store: Store) -> None:
    batch = await leased(store)
    (plain,) = await submit(store)
    assert await store.leases.is_held_by(batch.batch_id, OWNER)
    assert not await store.leases.is_held_by(batch.batch_id, "admin")
    assert not await store.leases.is_held_by(batch_of(plain), OWNER)
