"""A Redis that was started again is another epoch: what it forgot is told again, and cursors begin anew."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from tests.support.batches import (
    announce,
    batch_of,
    beat,
    claim,
    new_batch,
    result_of,
    status_of,
    submit,
    uids_of,
    view_of,
)
from tests.support.durable_redis import DurableRedis, durable_redis
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.store import Claim, ClaimLost, ClaimRefused, Store

TURN, OBS = turn_record(1), observation_record(1)


@pytest.fixture(scope="module")
def server() -> Iterator[DurableRedis]:
    with durable_redis() as running:
        yield running


@pytest.fixture
async def store(server: DurableRedis) -> AsyncIterator[Store]:
    opened = Store.open(server.url)
    yield opened
    await opened.close()


async def epoch_of(store: Store) -> int:
    return (await beat(store, "anybody", running=0, tokenizers={}))[2]


async def state_of(store: Store, uid: str) -> tuple[RolloutStatus, int]:
    view = await view_of(store, uid)
    return view.status, view.attempt


async def read_all(store: Store, batch_id: str, cursor: str) -> list[tuple[str, dict[str, Any]]]:
    page = await store.batches.results(batch_id, cursor, 100)
    return [(at, orjson.loads(data)) for at, data in page.items]


async def test_it_rises_once_at_each_start_whoever_comes_first(server: DurableRedis, store: Store) -> None:
    before = await epoch_of(store)
    assert await epoch_of(store) == before
    server.mark()
    server.lose_tail()
    many = [Store.open(server.url) for _ in range(8)]
    assert {await epoch_of(store), *await asyncio.gather(*map(epoch_of, many))} == {before + 1}
    for opened in many:
        await opened.close()


@pytest.mark.parametrize("journaled", [0, 2])
async def test_a_claim_that_was_forgotten_is_made_again(server: DurableRedis, store: Store, journaled: int) -> None:
    (uid,) = await submit(store)
    records: list[JournalRecord] = [TURN, OBS]
    del records[journaled:]
    server.mark()
    held = await claim(store, uid)
    for n in range(journaled):
        await store.rollouts.journal(held, records[: n + 1], turns=1)
    server.lose_tail()
    assert await state_of(store, uid) == (RolloutStatus.QUEUED, 0)
    assert await store.rollouts.restore(held, records, turns=1)
    assert await state_of(store, uid) == (RolloutStatus.RUNNING, 1)
    assert await store.rollouts.read_journal(uid) == records
    assert (await store.workers.tokens("w1"))[uid] == held.token
    assert await store.rollouts.claim(uid, "w2") == ClaimRefused("taken")
    await store.rollouts.finish(held, result_of(held))
    status = await status_of(store, held.batch_id)
    assert (status.counts[RolloutStatus.RUNNING], status.counts[RolloutStatus.COMPLETED]) == (0, 1)


async def test_who_writes_first_brings_the_claim_and_all_records_back(server: DurableRedis, store: Store) -> None:
    (uid, other) = await submit(store, 2)
    server.mark()
    held, ended = await claim(store, uid), await claim(store, other)
    await store.rollouts.journal(held, [TURN], turns=1)
    server.lose_tail()
    await store.rollouts.journal(held, [TURN, OBS], turns=1)
    assert await store.rollouts.read_journal(uid) == [TURN, OBS]
    await store.rollouts.finish(ended, result_of(ended))
    assert (await state_of(store, other))[0] is RolloutStatus.COMPLETED


async def test_a_forgotten_claim_is_lost_once_somebody_else_has_made_one(server: DurableRedis, store: Store) -> None:
    (uid,) = await submit(store)
    server.mark()
    first = await claim(store, uid)
    server.lose_tail()
    second = await claim(store, uid, "w2")
    assert first.attempt == second.attempt
    assert not await store.rollouts.restore(first, [TURN], turns=1)
    with pytest.raises(ClaimLost):
        await store.rollouts.journal(first, [TURN], turns=1)
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(first, result_of(first))
    assert await store.rollouts.read_journal(uid) == []
    await store.rollouts.finish(second, result_of(second))


async def test_of_two_forgotten_claims_the_later_wins(server: DurableRedis, store: Store) -> None:
    await announce(store, "w1")
    (uid,) = await submit(store)
    first = await claim(store, uid)
    server.mark()
    await store.rollouts.release(first, clean=True)
    second = await claim(store, uid, "w2")
    server.lose_tail()
    assert await state_of(store, uid) == (RolloutStatus.RUNNING, 1)
    assert await store.rollouts.restore(second, [TURN], turns=1)
    assert await state_of(store, uid) == (RolloutStatus.RUNNING, 2)
    # Should the first run yet, it is told to stop.
    assert (await beat(store, "w1", running=0, tokenizers={}))[1] == [first.token]
    assert not await store.rollouts.restore(first, [], turns=0)
    await store.rollouts.finish(second, result_of(second))


async def test_what_a_restart_had_forgotten_does_not_come_back(server: DurableRedis, store: Store) -> None:
    (uid,) = await submit(store)
    first = await claim(store, uid)
    await store.rollouts.journal(first, [TURN], turns=1)
    await store.rollouts.release(first, clean=False)
    server.mark()
    second = await store.rollouts.restart(await claim(store, uid))
    await store.rollouts.journal(second, [OBS], turns=0)
    server.lose_tail()
    assert await store.rollouts.read_journal(uid) == [TURN]
    await store.rollouts.journal(second, [OBS], turns=0)
    assert await store.rollouts.read_journal(uid) == [OBS]


async def test_nothing_is_restored_after_the_trainer_cancelled(server: DurableRedis, store: Store) -> None:
    (uid,) = await submit(store)
    server.mark()
    held = await claim(store, uid)
    server.lose_tail()
    await store.batches.cancel(held.batch_id)
    assert not await store.rollouts.restore(held, [TURN], turns=1)
    assert (await state_of(store, uid))[0] is RolloutStatus.CANCELLED


async def test_a_rollout_whose_end_was_forgotten_runs_again(server: DurableRedis, store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    server.mark()
    await store.rollouts.finish(held, result_of(held))
    server.lose_tail()
    assert (await store.workers.tokens("w1"))[uid] == held.token
    await store.rollouts.abandon(uid, held.token, held.role)
    again = await store.rollouts.claim(uid, "w2")
    assert isinstance(again, Claim)
    # What the lost end had journaled is not known: a call may have been made.
    assert (again.attempt, again.clean) == (2, False)
    await store.rollouts.abandon(uid, held.token, held.role)
    assert await state_of(store, uid) == (RolloutStatus.RUNNING, 2)


async def test_a_cursor_of_an_older_epoch_is_the_start(server: DurableRedis, store: Store) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)
    kept, lost, later = [await claim(store, uid) for uid in uids_of(batch)]
    await store.rollouts.finish(kept, result_of(kept))
    server.mark()
    await store.rollouts.finish(lost, result_of(lost))
    before = await read_all(store, batch.batch_id, "0")
    assert [result["uid"] for _, result in before] == [kept.uid, lost.uid]
    cursor = before[-1][0]
    assert await read_all(store, batch.batch_id, cursor) == []
    server.lose_tail()
    # A clock that went back would put these before the cursor: they are found all the same.
    await store.rollouts.finish(later, result_of(later))
    await store.rollouts.finish(lost, result_of(lost))
    again = await read_all(store, batch.batch_id, cursor)
    assert [result["uid"] for _, result in again] == [kept.uid, later.uid, lost.uid]
    assert again[0][0] != before[0][0]
    assert await read_all(store, batch.batch_id, again[0][0]) == again[1:]
    page = await store.batches.results(batch.batch_id, again[-1][0], 100)
    assert page == ([], again[-1][0], True)


async def test_an_old_cursor_of_a_batch_without_results_is_the_start(server: DurableRedis, store: Store) -> None:
    (uid,) = await submit(store)
    batch_id = batch_of(uid)
    server.mark()
    await store.rollouts.settle(batch_id, 0, RolloutEnd(RolloutStatus.CANCELLED, FinishReason.CANCELLED))
    ((cursor, _),) = await read_all(store, batch_id, "0")
    server.lose_tail()
    assert await store.batches.results(batch_id, cursor, 100) == ([], "0", False)
