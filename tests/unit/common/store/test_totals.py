"""Totals count each thing once and outlive what they count."""

from tests.support.batches import claim, new_batch, result_of, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store


async def test_a_new_store_has_counted_nothing(store: Store) -> None:
    stats = await store.totals.read()
    assert stats.totals == {}
    assert (stats.open, stats.delayed, stats.pushes_pending) == (0, 0, 0)


async def test_an_end_is_counted_once_with_what_it_brought(store: Store) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    for _ in range(2):
        await store.rollouts.finish(claimed, result_of(claimed))
    totals = (await store.totals.read()).totals
    assert {name: totals[name] for name in ("batches", "accepted", "status:completed", "alignment:exact")} == {
        "batches": 1,
        "accepted": 1,
        "status:completed": 1,
        "alignment:exact": 1,
    }
    assert (totals["turns"], totals["sampled"], totals["tokens"]) == (1, 2, 5)


async def test_a_batch_that_is_submitted_again_is_not_accepted_again(store: Store) -> None:
    await store.batches.submit(new_batch(2, key="k", priority=Priority.HIGH))
    await store.batches.submit(new_batch(2, key="k", priority=Priority.HIGH))
    assert (await store.totals.read()).totals["accepted"] == 2
