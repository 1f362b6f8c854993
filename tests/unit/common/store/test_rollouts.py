"""A rollout belongs to one claim at a time; a write of any other claim changes nothing and says so."""

import asyncio

import pytest
from tests.support.batches import OWNER, claim, result_of, submit
from tests.support.journals import turn_record

from rolloutpool_common.outcomes import Category, RolloutStatus
from rolloutpool_common.store import Claim, ClaimLost, ClaimRefused, Store
from rolloutpool_common.store.rollouts import MAX_LOSSES


async def test_of_many_claims_at_once_one_wins(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    answers = await asyncio.gather(*((store if i % 2 else other).rollouts.claim(uid, f"w{i}") for i in range(10)))
    assert sum(isinstance(answer, Claim) for answer in answers) == 1
    assert answers.count(ClaimRefused("taken")) == 9


async def test_a_released_rollout_goes_on_under_another_token(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    first = await claim(store, uid, "w1")
    await store.rollouts.journal(first, [turn_record(1)], turns=1)
    await store.rollouts.release(first, clean=True)
    second = await claim(other, uid, "w2")
    assert (second.attempt, second.journal_length, second.clean, second.crashes) == (2, 1, True, 0)
    assert await other.rollouts.read_journal(uid) == [turn_record(1)]
    # The first worker's late writes are refused by the script.
    with pytest.raises(ClaimLost):
        await store.rollouts.journal(first, [turn_record(1), turn_record(2)], turns=2)
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(first, result_of(first))
    await other.rollouts.finish(second, result_of(second))
    view = await store.rollouts.view(uid, OWNER)
    assert view is not None
    assert (view.status, view.attempt) == (RolloutStatus.COMPLETED, 2)


async def test_a_finish_that_arrives_twice_is_one_finish(store: Store) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    result = result_of(claimed)
    for _ in range(2):
        await store.rollouts.finish(claimed, result)
    assert await store.rollouts.result(uid) == result.model_dump_json().encode()
    assert await store.rollouts.claim(uid, "w2") == ClaimRefused("ended")


async def test_what_is_given_back_is_delayed_and_counted(store: Store) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    assert await store.rollouts.give_back(claimed, clean=True, counter="retries", delay_s=60)
    stats = await store.totals.read()
    assert (stats.delayed, stats.totals["requeued:retries"]) == (1, 1)


async def test_a_cancelled_rollout_ends_at_once_whoever_runs_it(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    assert await other.rollouts.cancel(uid) is RolloutStatus.CANCELLED
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(held, result_of(held))


@pytest.mark.parametrize("uid", ["", "-0", "b-x", "b-9999999", "\x00-0"])
async def test_uids_of_nothing_are_gone(store: Store, uid: str) -> None:
    assert await store.rollouts.claim(uid, "w1") == ClaimRefused("gone")
    assert await store.rollouts.cancel(uid) is None


async def test_a_rollout_that_leaves_its_workers_without_a_result_fails_at_last(store: Store) -> None:
    (uid,) = await submit(store)
    for number in range(MAX_LOSSES):
        held = await claim(store, uid, f"w{number}")
        assert await store.rollouts.abandon(uid, held.token, held.role)
    view = await store.rollouts.view(uid, OWNER)
    assert view is not None
    assert (view.status, view.attempt) == (RolloutStatus.FAILED, MAX_LOSSES)
    assert view.result is not None
    assert view.result["failure"]["category"] == Category.INTERNAL_ERROR
    assert "8 attempts ended without a result" in view.result["failure"]["message"]
    assert await store.rollouts.claim(uid, "late") is ClaimRefused.ENDED


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
