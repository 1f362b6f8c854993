"""Groups with a policy: when a trainer may take one early, when it is lost, and what becomes of the late."""

import pytest
from tests.support.batches import claim, new_batch, result_of, status_of, uids_of

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.groups import GroupPolicy, LateRollouts
from rolloutpool_common.store import Store
from rolloutpool_common.store.keys import uid_of


async def batch_of(store: Store, late: LateRollouts) -> str:
    """Two groups of four, of which three are enough."""
    policy = GroupPolicy(size=4, min_usable=3, late=late)
    batch = new_batch(8, groups=["a"] * 4 + ["b"] * 4, group_policy=policy)
    await store.batches.submit(batch)
    return batch.batch_id


async def verdicts(store: Store, batch_id: str) -> dict[str, str]:
    return {group.group: group.verdict for group in await store.batches.groups(batch_id)}


@pytest.mark.parametrize("late", list(LateRollouts))
async def test_enough_make_a_group_usable(store: Store, late: LateRollouts) -> None:
    batch_id = await batch_of(store, late)
    claims = [await claim(store, uid_of(batch_id, index)) for index in range(4)]
    for done in claims[:2]:
        await store.rollouts.finish(done, result_of(done))
    assert await verdicts(store, batch_id) == {"a": "open", "b": "open"}
    await store.rollouts.finish(claims[2], result_of(claims[2]))
    assert await verdicts(store, batch_id) == {"a": "usable", "b": "open"}
    await store.reconciliation.run_once()
    status = await status_of(store, batch_id)
    cancelled = status.counts[RolloutStatus.CANCELLED]
    assert cancelled == (1 if late is LateRollouts.CANCEL else 0)
    if late is LateRollouts.KEEP:
        await store.rollouts.finish(claims[3], result_of(claims[3]))
        (group, _) = await store.batches.groups(batch_id)
        assert (group.size, group.completed, group.verdict) == (4, 4, "usable")


async def test_what_has_its_groups_grade_is_delivered_and_not_late(store: Store) -> None:
    policy = GroupPolicy(size=4, min_usable=2, late=LateRollouts.CANCEL)
    batch = new_batch(4, groups=["g"] * 4, group_policy=policy, asks={"grading": True})
    await store.batches.submit(batch)
    claims = [await claim(store, uid) for uid in uids_of(batch)]
    kept = KeptRollouts(store)
    for one in claims:
        assert await kept.begin(one, result_of(one), seconds=600, group="g") == "held"
    leader = await claim(store, claims[0].uid)
    # Their worker delivers one after the other, itself last; the reconciler looks in between.
    for done in (*claims[1:], leader):
        assert await kept.deliver(batch.batch_id, result_of(done))
        await store.reconciliation.run_once()
    (group,) = await store.batches.groups(batch.batch_id)
    assert (group.completed, group.cancelled, group.verdict) == (4, 0, "usable")


async def test_a_group_that_cannot_have_enough_is_dropped_for_good(store: Store) -> None:
    batch_id = await batch_of(store, LateRollouts.CANCEL)
    for index in (4, 5):
        await store.rollouts.settle(batch_id, index, RolloutEnd(RolloutStatus.FAILED, FinishReason.ERROR))
    assert await verdicts(store, batch_id) == {"a": "open", "b": "dropped"}
    await store.reconciliation.run_once()
    status = await status_of(store, batch_id)
    assert status.counts[RolloutStatus.CANCELLED] == 2
    assert await verdicts(store, batch_id) == {"a": "open", "b": "dropped"}


async def test_a_batch_without_policy_has_no_group_counts(store: Store) -> None:
    batch = new_batch(2, groups=["a", "a"])
    await store.batches.submit(batch)
    assert await store.batches.groups(batch.batch_id) == []
