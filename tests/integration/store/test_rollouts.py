"""A rollout belongs to one claim at a time; every write of another one changes nothing and says so."""

import os
import time

import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, batch_of, claim, result_of, status_of, submit, view_of
from tests.support.journals import turn_record
from tests.support.waiting import until

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import ClaimLost, ClaimRefused, Store


async def state_of(store: Store, uid: str) -> RolloutStatus:
    view = await view_of(store, uid)
    return view.status


async def test_uids_of_nothing_are_gone(store: Store) -> None:
    (uid,) = await submit(store)
    of_batch = [f"{batch_of(uid)}-{index}" for index in ("1", "00")]
    for name in ("", "-", "-0", "b", "b-x", "b-1-", "b-٣", "b-9999999", "b0-0", "\x00-0", *of_batch):
        assert await store.rollouts.claim(name, "w1") == ClaimRefused("gone")
        assert await store.rollouts.view(name, OWNER) is None
        assert await store.rollouts.cancel(name) is None
    # Nothing was counted as running.
    assert (await status_of(store, uid)).counts[RolloutStatus.QUEUED] == 1


async def test_a_released_rollout_waits_in_front_of_its_batch(store: Store) -> None:
    uids = await submit(store, 3)
    await store.outbox.reserve(Priority.DEFAULT, 3)
    claimed = await claim(store, uids[2])
    await store.rollouts.release(claimed, clean=True)
    assert [ticket.index for ticket in await store.outbox.reserve(Priority.DEFAULT, 3)] == [2]


async def test_what_redis_lost_of_a_journal_is_sent_again(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    records = [turn_record(f"{n} " + "x" * 5000) for n in range(5)]
    for end in range(1, 4):
        await store.rollouts.journal(claimed, records[:end], turns=end)
    await raw.ltrim(f"rp:rollout:{uid}:journal", 0, 0)
    await store.rollouts.journal(claimed, records[:4], turns=4)
    assert await store.rollouts.read_journal(uid) == records[:4]
    await raw.delete(f"rp:rollout:{uid}:journal")
    await store.rollouts.journal(claimed, records, turns=5)
    assert await store.rollouts.read_journal(uid) == records
    view = await view_of(store, uid)
    assert view.turns == 5


async def test_a_record_that_arrives_twice_is_kept_once(store: Store) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    for _ in range(3):
        await store.rollouts.journal(claimed, [turn_record(1)], turns=1)
    assert await store.rollouts.read_journal(uid) == [turn_record(1)]


async def test_cancel_is_final_for_a_queued_and_a_running_rollout(store: Store) -> None:
    queued, running = await submit(store, 2)
    claimed = await claim(store, running)
    for uid in (queued, running):
        assert await store.rollouts.cancel(uid) is RolloutStatus.CANCELLED
        assert await state_of(store, uid) is RolloutStatus.CANCELLED
    assert await store.rollouts.claim(queued, "w1") == ClaimRefused("ended")
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(claimed, result_of(claimed))
    with pytest.raises(ClaimLost):
        await store.rollouts.journal(claimed, [turn_record(1)], turns=1)
    assert not await store.rollouts.release(claimed, clean=True)
    assert await state_of(store, running) is RolloutStatus.CANCELLED
    data = await store.rollouts.result(running)
    assert data is not None
    assert b'"finish_reason":"cancelled"' in data


@pytest.mark.parametrize("wrong", [-1e6, 1e6])
async def test_deadlines_are_measured_by_redis_clock_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """The clocks of API and workers may be wrong by days."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + wrong)
    (late,), (timely,) = await submit(store, deadline_s=0.001), await submit(store, deadline_s=600)
    held = await claim(store, timely)
    assert held.deadline_in_s is not None
    assert 300 < held.deadline_in_s <= 600
    assert 0 <= held.queued_ms < 300_000

    async def expired() -> bool:
        return (await store.reconciliation.run_once()).expired == 1

    await until(expired)
    assert await state_of(store, late) is RolloutStatus.EXPIRED
    assert await state_of(store, timely) is RolloutStatus.RUNNING


async def test_results_come_back_byte_by_byte_whatever_their_size(store: Store) -> None:
    for uid, size in zip(await submit(store, 3), (0, 4096, 200_000), strict=True):
        claimed = await claim(store, uid)
        noise = os.urandom(size // 2).hex() + "é☃\x00"
        result = result_of(claimed, metadata={"noise": noise})
        await store.rollouts.finish(claimed, result)
        assert await store.rollouts.result(uid) == result.model_dump_json().encode()


async def test_a_view_shows_each_stage(store: Store) -> None:
    (uid,) = await submit(store, [{"rollout_id": "mine"}], groups=["g"])
    view = await view_of(store, uid)
    assert (view.status, view.attempt, view.worker, view.turns, view.result) == ("queued", 0, None, 0, None)
    assert (view.rollout_id, view.group, view.index) == ("mine", "g", 0)
    claimed = await claim(store, uid, "w9")
    view = await view_of(store, uid)
    assert (view.status, view.attempt, view.worker) == ("running", 1, "w9")
    await store.rollouts.finish(claimed, result_of(claimed))
    view = await view_of(store, uid)
    assert (view.status, view.attempt, view.worker) == ("completed", 1, "w9")
    assert view.result is not None
    assert await store.rollouts.view(uid, "theirs") is None
    assert await store.rollouts.find("mine", "theirs") is None


async def test_a_claim_that_redis_forgot_does_not_come_back_beside_another_of_its_number(
    store: Store, raw: Redis
) -> None:
    (uid,) = await submit(store)
    forgotten = await claim(store, uid, "w1")
    await raw.delete(f"rp:rollout:{uid}")
    fresh = await claim(store, uid, "w2")
    assert fresh.attempt == forgotten.attempt
    assert not await store.rollouts.restore(forgotten, [], turns=0)
    await store.rollouts.finish(fresh, result_of(fresh))


async def test_one_record_that_redis_lost_is_sent_again_before_the_next(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    records = [turn_record(n) for n in range(3)]
    for turns in (1, 2):
        await store.rollouts.journal(held, records[:turns], turns=turns)
    await raw.rpop(f"rp:rollout:{uid}:journal")
    await store.rollouts.journal(held, records, turns=3)
    assert await store.rollouts.read_journal(uid) == records


async def test_a_suspect_that_has_ended_waits_for_no_isolated_worker(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    await raw.zadd("rp:suspects", {uid: 1})
    await store.rollouts.cancel(uid)
    assert await raw.zscore("rp:suspects", uid) is None
