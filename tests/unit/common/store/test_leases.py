"""Leases: a batch that nobody reads is cancelled, and no gap in anybody's view counts as silence."""

import pytest
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


@pytest.mark.parametrize("gap", ["another process", "away", "stood still", "set back", "started again"])
async def test_no_gap_counts_as_silence(store: Store, gap: str) -> None:
    await (clock := ServedClock(store)).tick()
    batch = await leased(store)
    await clock.seconds(25)
    match gap:
        case "another process":
            clock = ServedClock(store, "p2")
            found = await clock.tick(4.0)
        case "away":
            found = await clock.tick(4.0, serving=False)
        case "stood still":
            found = await clock.tick(7200.0)
        case "set back":
            found = await clock.tick(-7200.0)
        case "started again":
            await store.connection.redis.hincrby("rp:epoch", "number")
            found = await clock.tick(1.0)
    assert found == []
    assert 3 < await left_s(store, batch) < 6
    # Its reader waits before it asks again, so for some seconds nothing ends.
    assert await clock.seconds(9) == []
    assert await clock.seconds(3) == [batch.batch_id]


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
