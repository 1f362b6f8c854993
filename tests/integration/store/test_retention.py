"""Nothing grows for ever: what a batch left is deleted when its time is over, and the rest has a size of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

import pytest
from tests.support.batches import OWNER, announce, beat, claim, finish, new_batch, result_of, uids_of
from tests.support.journals import turn_record
from tests.support.waiting import until

from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.groups import GroupPolicy, LateRollouts
from rolloutpool_common.protocol.operations import Preflight
from rolloutpool_common.store import NewBatch, Store

BATCHES, ROLLOUTS, FATES = 9, 8, 8

LASTING = {
    *("rp:totals", "rp:finished", "rp:leader", "rp:epoch", "rp:schema"),
    *("rp:served", "rp:known_runs"),
}
"""Of the pool, not of a batch: capped lists, one hash of counters, a clock, one lock that expires."""
RUNS = ("rp:steering:", "rp:reserve:")
Work = Callable[[Store], Awaitable[None]]


async def keys_of(raw: Any) -> set[str]:
    return {key async for key in raw.scan_iter("*", count=1000)}


def busy_batch(number: int, asks: Mapping[str, object] | None = None) -> NewBatch:
    """With all that a batch can have beside its rollouts."""
    return new_batch(
        [{"rollout_id": f"b{number}-r{i}", "callback_api_key": "a key"} for i in range(ROLLOUTS)],
        groups=[f"g{i % 4}" for i in range(ROLLOUTS)],
        group_policy=GroupPolicy(min_usable=3, late=LateRollouts.CANCEL),
        deadline_s=3600,
        asks=asks or {},
        key=f"key {number}",
        run=f"run {number % 3}",
        priority=list(Priority)[number % len(Priority)],
    )


async def live(store: Store, uid: str, fate: int) -> None:
    """One of the lives that a rollout can have; some are left to others."""
    if fate == 0:
        await store.rollouts.cancel(uid)
        return
    held = await claim(store, uid)
    await store.rollouts.journal(held, [turn_record(1)], turns=1)
    match fate:
        case 1:
            await store.rollouts.cancel(uid)
        case 2:
            await store.rollouts.settle(
                held.batch_id, held.index, RolloutEnd(RolloutStatus.EXPIRED, FinishReason.DEADLINE)
            )
        case 3:
            await store.rollouts.keep_evidence(held, result_of(held))
            await store.rollouts.finish(held, result_of(held, status=RolloutStatus.FAILED, samples=[]))
            await store.reconciliation.note_dead(uid)
        case 4:
            await store.rollouts.give_back(held, clean=True, counter="retries", delay_s=60)
        case 5:
            assert await store.rollouts.release(held, clean=True)
            await finish(store, uid)
        case _:
            await store.rollouts.finish(held, result_of(held))


async def run_some_batches(
    store: Store, retention_s: float, asks: Mapping[str, object] | None = None, work: Work | None = None
) -> list[NewBatch]:
    """Batches whose rollouts have ended in every way; `work` is what a worker does for a capability then."""
    batches = [busy_batch(number, asks) for number in range(BATCHES)]
    await announce(store, "w1")
    for batch in batches:
        await store.batches.submit(batch, retention_s=retention_s)
        await store.outbox.reserve(batch.priority, 5)
        for i, uid in enumerate(uids_of(batch)):
            await live(store, uid, i % FATES)
        await store.batches.cancel(batch.batch_id)
    # As workers do that beat, deliver, and leave.
    await beat(store, "w1", running=0, tokenizers={})
    if work is not None:
        await work(store)
    await store.workers.leave("w1")
    found = Preflight(worker="w1", endpoints=[])
    await store.preflights.answer("asked", found)
    assert await store.preflights.take("asked") == found
    return batches


async def check_nothing_is_left(
    store: Store, raw: Any, batches: Sequence[NewBatch], lasting: Set[str] = frozenset()
) -> None:
    """All of it is deleted, and of keys only those stay that last."""

    async def all_deleted() -> bool:
        await store.reconciliation.run_once()
        # What a capability keeps for some time more has had its time.
        for batch_id, at in await raw.zrange("rp:ended", 0, -1, withscores=True):
            await raw.zadd("rp:ended", {batch_id: at - 86_400_000})
        return not await raw.exists("rp:ended")

    await until(all_deleted)
    left = await keys_of(raw) - lasting
    runs = {key for key in left if key.startswith(RUNS)}
    # A run outlives its batches, for a week.
    assert all([0 < await raw.ttl(key) <= 7 * 86_400 for key in runs])
    assert left - runs <= LASTING
    # No trace of a name in what stays.
    totals = str(await raw.hgetall("rp:totals"))
    assert all(batch.batch_id not in totals for batch in batches)
    assert await store.batches.status(batches[0].batch_id, OWNER) is None
    assert await store.rollouts.find("b0-r1", OWNER) is None
    # The key is free again: what it stood for is gone.
    assert (await store.batches.submit(busy_batch(0))).created


async def test_whatever_became_of_its_rollouts_a_batch_leaves_nothing(store: Store, raw: Any) -> None:
    await check_nothing_is_left(store, raw, await run_some_batches(store, retention_s=0.001))


async def test_until_then_every_key_belongs_to_a_batch_whose_end_is_known(store: Store, raw: Any) -> None:
    batches = await run_some_batches(store, retention_s=7200)
    due = dict(await raw.zrange("rp:ended", 0, -1, withscores=True))
    assert set(due) == {batch.batch_id for batch in batches}
    now, _ = await raw.time()
    assert all(now + 7200 - 600 < at / 1000 <= now + 7201 for at in due.values())
    assert (await store.reconciliation.run_once()).deleted == 0
    assert await raw.llen("rp:dead") == BATCHES * ROLLOUTS // FATES
    pool_wide = {"rp:ended", "rp:usage", "rp:dead", *LASTING}
    for key in await keys_of(raw) - pool_wide:
        if key.startswith("rp:idempotency:"):
            assert 0 < await raw.pttl(key) <= 7_200_000, key
        elif key.startswith(RUNS):
            assert 0 < await raw.ttl(key) <= 7 * 86_400, key
        elif key.startswith("rp:batches"):
            assert set(await raw.zrange(key, 0, -1)) <= set(due), key
        elif key.startswith("rp:name:"):
            assert (await raw.get(key)).rpartition("-")[0] in due, key
        else:
            kind, _, rest = key.removeprefix("rp:").partition(":")
            assert kind in ("batch", "rollout"), key
            assert rest.partition(":")[0].partition("-")[0] in due, key
            # A journal ends with its rollout.
            assert not key.endswith(":journal"), key


@pytest.mark.parametrize("over", [False, True])
async def test_a_worker_that_has_lost_its_rollout_leaves_nothing_of_a_deleted_batch(
    store: Store, raw: Any, over: bool
) -> None:
    batch = new_batch()
    await announce(store, "w1")
    await store.batches.submit(batch)
    held = await claim(store, uids_of(batch)[0])
    await store.model_calls.note_idempotent(held)
    assert await store.model_calls.is_idempotent(held)
    await store.batches.cancel(batch.batch_id)
    if over:
        await store.batches.delete(batch.batch_id)
    else:
        await raw.hset(f"rp:batch:{batch.batch_id}", "deleting", 1)
    await store.model_calls.note_idempotent(held)
    await store.rollouts.keep_evidence(held, result_of(held))
    assert not {key for key in await keys_of(raw) if key.endswith((":idempotent", ":evidence"))}


async def test_each_batch_has_the_time_that_it_was_accepted_with(store: Store, raw: Any) -> None:
    short, long = new_batch(key="short"), new_batch(key="long")
    await store.batches.submit(short, retention_s=0.001)
    await store.batches.submit(long, retention_s=3600)
    # An ended one alone: time begins with the end.
    running = new_batch(key="running")
    await store.batches.submit(running, retention_s=0.001)
    for batch in (short, long):
        await store.rollouts.cancel(uids_of(batch)[0])

    async def gone() -> bool:
        await store.reconciliation.run_once()
        return await store.batches.status(short.batch_id, OWNER) is None

    await until(gone)
    assert await store.batches.status(long.batch_id, OWNER) is not None
    assert await store.batches.status(running.batch_id, OWNER) is not None
    assert await raw.pttl("rp:idempotency:tests:running") == -1
    assert await store.batches.submitted(OWNER, "short") is None
    assert await store.batches.submitted(OWNER, "long") == long.batch_id


async def test_a_deletion_leaves_a_key_to_the_batch_that_has_it_now(store: Store, raw: Any) -> None:
    old, new, again = (new_batch(key="step 7", v1=True) for _ in range(3))
    await store.batches.submit(old)
    await finish(store, uids_of(old)[0])
    # A rollout of protocol v1 is kept for a day, and its key for ten minutes.
    assert await raw.pexpire(f"rp:idempotency:{OWNER}:step 7", 0)
    assert (await store.batches.submit(new)).created
    await store.batches.delete(old.batch_id)
    assert await store.batches.submit(again) == (new.batch_id, False)


async def test_the_stream_of_wake_ups_is_capped(store: Store, raw: Any) -> None:
    """It would otherwise be the one thing that grows with each rollout."""
    pipe = raw.pipeline(transaction=False)
    for _ in range(12_000):
        pipe.xadd("rp:finished", {"batch": "b"})
    await pipe.execute()
    batch = new_batch(50)
    await store.batches.submit(batch)
    await asyncio.gather(*(store.rollouts.cancel(uid) for uid in uids_of(batch)))
    # Redis trims by whole nodes of 100 entries.
    assert await raw.xlen("rp:finished") < 10_200


async def test_who_killed_workers_is_forgotten_with_its_batch(store: Store, raw: Any) -> None:
    """The alert on such rollouts was firing for ever: nobody could look at them, or requeue them."""
    kept, gone = new_batch(1), new_batch(2)
    for batch in (kept, gone):
        await store.batches.submit(batch)
        for uid in uids_of(batch):
            await store.reconciliation.note_dead(uid)
        await store.batches.cancel(batch.batch_id)
    # An earlier release has left it.
    await store.reconciliation.note_dead(uids_of(new_batch(1))[0])
    await store.batches.delete(gone.batch_id)
    assert await store.reconciliation.dead_letters() == uids_of(kept)


async def test_redis_is_not_held_up_where_many_killed_workers(store: Store, raw: Any) -> None:
    """Each was looked for in the whole list, all in one script: for 10,000 Redis answered nobody for 2 s."""

    async def calls() -> int:
        return sum(command["calls"] for command in (await raw.info("commandstats")).values())

    kept, gone = new_batch(1), new_batch(3000)
    for batch in (kept, gone):
        await store.batches.submit(batch)
        await store.batches.cancel(batch.batch_id)
    await raw.rpush("rp:dead", *uids_of(gone)[:1500], *uids_of(kept), *uids_of(gone)[1500:])
    before = await calls()
    await store.connection.script("forget_usage", gone.batch_id)
    assert await calls() - before < 100
    assert await store.reconciliation.dead_letters() == uids_of(kept)
