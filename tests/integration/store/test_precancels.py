"""A cancel that comes before its submit: the rollout is accepted, ends cancelled, and nobody ever runs it."""

import asyncio

import orjson
import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, announce, claim, new_batch, status_of, submit, uids_of, view_of

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.store import ClaimRefused, Store, StoreUnavailable, rollouts
from rolloutpool_common.store.rollouts import PRECANCEL_SECONDS

NAMED = [{"rollout_id": f"r{i}"} for i in range(3)]


async def test_only_the_rollout_of_that_name_ends(store: Store) -> None:
    assert await store.rollouts.precancel("r1", OWNER) is None
    batch = new_batch(NAMED, groups=["g"] * 3, group_policy=GroupPolicy(min_usable=3))
    assert (await store.batches.submit(batch)).created
    first, precancelled, last = uids_of(batch)
    page = await store.batches.results(batch.batch_id, "0", 10)
    (result,) = [orjson.loads(data) for _, data in page.items]
    assert (result["uid"], result["status"], result["attempt"]) == (precancelled, RolloutStatus.CANCELLED, 0)
    tickets = await store.outbox.reserve(Priority.DEFAULT, 10)
    assert [ticket.index for ticket in tickets] == [0, 2]
    assert await store.rollouts.claim(precancelled, "w1") == ClaimRefused("ended")
    for uid in (first, last):
        await claim(store, uid)
    # Its group is told as well.
    (group,) = await store.batches.groups(batch.batch_id)
    assert (group.cancelled, group.verdict) == (1, "dropped")


async def test_a_tombstone_is_for_one_submit_of_one_owner(store: Store) -> None:
    for _ in range(2):
        assert await store.rollouts.precancel("r0", OWNER) is None
    (theirs,) = await submit(store, NAMED[:1], owner="somebody")
    await claim(store, theirs)
    (mine,) = await submit(store, NAMED[:1])
    assert await store.rollouts.cancel(mine) is RolloutStatus.CANCELLED
    (again,) = await submit(store, NAMED[:1])
    assert (await claim(store, again)).attempt == 1


async def test_whoever_dies_behind_the_commit_the_reconciler_ends_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> str:
        raise StoreUnavailable

    await announce(store, "w1")
    await store.rollouts.precancel("r0", OWNER)
    with monkeypatch.context() as patch:
        patch.setattr(store.rollouts, "cancel_at", away)
        (uid,) = await submit(store, NAMED[:1])
    # Not ended yet; nobody gets it all the same, though a second ticket should exist.
    assert await store.rollouts.claim(uid, "w1") == ClaimRefused("ended")
    assert (await store.reconciliation.run_once()).cancelled == 1
    view = await view_of(store, uid)
    assert view.status is RolloutStatus.CANCELLED
    assert (await store.reconciliation.run_once()).cancelled == 0


async def test_what_waits_is_bounded_in_time_and_number(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.rollouts.precancel("r0", OWNER)
    assert 0 < await raw.ttl("rp:precancels") <= PRECANCEL_SECONDS
    await raw.zadd("rp:precancels", {f"{OWNER}:r0": 1})
    (uid,) = await submit(store, NAMED[:1])
    await claim(store, uid)
    monkeypatch.setattr(rollouts, "MAX_PRECANCELS", 2)
    for name in ("a", "b", "c"):
        await store.rollouts.precancel(name, OWNER)
    assert await raw.zcard("rp:precancels") == 2


async def test_cancel_and_submit_at_once_leave_no_rollout_running(store: Store, other: Store) -> None:
    for n in range(30):
        batch = new_batch([{"rollout_id": f"race{n}"}])
        uid, _ = await asyncio.gather(other.rollouts.precancel(f"race{n}", OWNER), store.batches.submit(batch))
        if uid is not None:
            await other.rollouts.cancel(uid)
        status = await status_of(store, batch.batch_id)
        assert status.counts[RolloutStatus.CANCELLED] == 1
