"""A rollout belongs to one claim at a time; a write of any other claim changes nothing and says so."""

import pytest
from tests.support.batches import claim, result_of, submit
from tests.support.journals import turn_record

from rolloutpool_common.store import ClaimLost, Store


async def test_a_stale_worker_throws_no_journal_away(store: Store) -> None:
    (uid,) = await submit(store)
    stale = await claim(store, uid, "w1")
    await store.rollouts.journal(stale, [turn_record(1)], turns=1)
    await store.rollouts.release(stale, clean=True)
    await claim(store, uid, "w2")
    with pytest.raises(ClaimLost):
        await store.rollouts.restart(stale)
    assert await store.rollouts.read_journal(uid) == [turn_record(1)]


async def test_a_claim_that_redis_forgot_does_not_come_back_beside_another_of_its_number(store: Store) -> None:
    (uid,) = await submit(store)
    forgotten = await claim(store, uid, "w1")
    await store.rollouts._redis.delete(f"rp:rollout:{uid}")
    fresh = await claim(store, uid, "w2")
    assert fresh.attempt == forgotten.attempt
    assert not await store.rollouts.restore(forgotten, [], turns=0)
    await store.rollouts.finish(fresh, result_of(fresh))


async def test_one_record_that_redis_lost_is_sent_again_before_the_next(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    records = [turn_record(n) for n in range(3)]
    for turns in (1, 2):
        await store.rollouts.journal(held, records[:turns], turns=turns)
    await store.rollouts._redis.rpop(f"rp:rollout:{uid}:journal")
    await store.rollouts.journal(held, records, turns=3)
    assert await store.rollouts.read_journal(uid) == records


async def test_a_suspect_that_has_ended_waits_for_no_isolated_worker(store: Store) -> None:
    (uid,) = await submit(store)
    await store.rollouts._redis.zadd("rp:suspects", {uid: 1})
    await store.rollouts.cancel(uid)
    assert await store.rollouts._redis.zscore("rp:suspects", uid) is None
