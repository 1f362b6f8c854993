"""Batches are taken whole, once for each idempotency key, and tell their owner alone how far they are."""

import pytest
from tests.support.batches import OWNER, claim, new_batch, result_of, uids_of

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchState
from rolloutpool_common.store import IdempotencyKeyReused, Store, SubmitLimits, TooManyOpen


async def test_a_key_names_one_batch_and_a_changed_one_conflicts(store: Store, other: Store) -> None:
    first, again = new_batch(key="k"), new_batch(key="k")
    assert (await store.batches.submit(first)).batch_id == first.batch_id
    assert (await other.batches.submit(again)).batch_id == first.batch_id
    with pytest.raises(IdempotencyKeyReused):
        await store.batches.submit(new_batch(key="k", digest="another"))


async def test_a_batch_is_of_its_owner_alone(store: Store) -> None:
    batch = new_batch(2)
    await store.batches.submit(batch)
    assert await store.batches.status(batch.batch_id, "another") is None
    status = await store.batches.status(batch.batch_id, OWNER)
    assert status is not None
    assert (status.total, status.state) == (2, BatchState.RUNNING)


async def test_results_are_read_once_each_in_the_order_of_their_ends(store: Store) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)
    order = [uids_of(batch)[index] for index in (2, 0, 1)]
    cursor = "0"
    read: list[bytes] = []
    for uid in order:
        claimed = await claim(store, uid)
        await store.rollouts.finish(claimed, result_of(claimed))
        piece = await store.batches.results(batch.batch_id, cursor, 10)
        cursor, read = piece.next_cursor, read + [data for _, data in piece.items]
    assert piece.complete
    assert read == [await store.rollouts.result(uid) for uid in order]


async def test_a_cancelled_batch_keeps_what_had_ended(store: Store) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)
    claimed = await claim(store, uids_of(batch)[0])
    await store.rollouts.finish(claimed, result_of(claimed))
    await store.batches.cancel(batch.batch_id)
    status = await store.batches.status(batch.batch_id, OWNER)
    assert status is not None
    assert status.state is BatchState.COMPLETE
    assert status.counts[RolloutStatus.COMPLETED] == 1
    assert status.counts[RolloutStatus.CANCELLED] == 2


async def test_a_batch_beyond_the_limit_of_open_rollouts_is_refused_whole(store: Store) -> None:
    await store.batches.submit(new_batch(3))
    with pytest.raises(TooManyOpen):
        await store.batches.submit(new_batch(2), SubmitLimits(max_open=4))
    assert (await store.totals.read()).open == 3
