"""What a batch's rollouts wait for is read with the batch, and carried by those that end meanwhile."""

from datetime import UTC, datetime, timedelta

import orjson
from fakeredis import FakeAsyncRedis
from tests.support.batches import claim, new_batch, result_of, status_of, submit, uids_of, view_of

from rolloutpool_common.errors import WorkerFault
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.waits import FIELD, STALE_SECONDS

URL = "http://trainer:8081"


def waiting(endpoint: str = URL, *, next_in_s: float = 5.0) -> Waiting:
    now = datetime.now(UTC)
    return Waiting(
        waits_for=WaitsFor.TRAINER,
        endpoint=endpoint,
        status=503,
        message="the trainer answered 503: loading",
        tries=3,
        last_try=now,
        next_try=now + timedelta(seconds=next_in_s),
    )


async def read(store: Store, batch_id: str) -> list[Waiting]:
    """What the trainers' part of a batch's state says; the rest is in `test_pool_waits`."""
    status = await status_of(store, batch_id)
    return [found for found in status.waiting if found.endpoint]


async def own(store: Store, uid: str) -> Waiting | None:
    view = await view_of(store, uid)
    return view.waiting


async def test_the_rollouts_of_all_workers_are_counted(store: Store, raw: FakeAsyncRedis) -> None:
    batch = new_batch(60)
    await store.batches.submit(batch)
    uids = uids_of(batch)
    for number, uid in enumerate(uids):
        # Each of four workers writes the batch's note for its first one alone.
        await store.waits.note(uid, 1, waiting(), batch=number < 4)
    await store.waits.note(uids[0], 1, waiting("http://trainer:8082"), batch=True)
    assert [found.rollouts for found in await read(store, batch.batch_id)] == [60, 1]
    for uid in uids[:59]:
        # The worker of these waits for nothing else, and others do still.
        await store.waits.clear(uid, 1, URL)
    assert [found.rollouts for found in await read(store, batch.batch_id)] == [1, 1]
    await store.waits.clear(uids[59], 1, URL)
    assert [found.endpoint for found in await read(store, batch.batch_id)] == ["http://trainer:8082"]
    key = keys.batch(batch.batch_id, f"{FIELD}http://trainer:8082")
    assert 0 < await raw.pttl(key) <= (STALE_SECONDS + 5.0) * 1000


async def test_a_rollout_whose_worker_died_is_counted_no_more_than_its_note(store: Store, raw: FakeAsyncRedis) -> None:
    batch = new_batch(2)
    await store.batches.submit(batch)
    first, second = uids_of(batch)
    await store.waits.note(first, 1, waiting(), batch=True)
    key = keys.batch(batch.batch_id, FIELD + URL)
    await raw.zadd(key, {"0": 1.0})
    await store.waits.note(second, 1, waiting(), batch=True)
    assert [found.rollouts for found in await read(store, batch.batch_id)] == [1]


async def test_a_note_is_read_with_the_rollout_that_waits_and_no_other(store: Store) -> None:
    uid, beside = await submit(store, 2)
    held = await claim(store, uid)
    await claim(store, beside)
    noted = waiting()
    await store.waits.note(uid, held.attempt, noted, batch=False)
    assert (await own(store, uid), await own(store, beside)) == (noted, None)
    assert await read(store, held.batch_id) == []
    await store.waits.clear(uid, held.attempt, URL)
    assert await own(store, uid) is None


async def test_an_attempt_that_is_over_says_nothing(store: Store) -> None:
    uid = (await submit(store))[0]
    first = await claim(store, uid)
    await store.waits.note(uid, first.attempt, waiting(), batch=False)
    await store.rollouts.release(first, clean=True)
    second = await claim(store, uid)
    assert await own(store, uid) is None
    await store.waits.note(uid, first.attempt, waiting(), batch=False)
    assert await own(store, uid) is None
    noted = waiting()
    await store.waits.note(uid, second.attempt, noted, batch=False)
    await store.waits.clear(uid, first.attempt, URL)
    assert await own(store, uid) == noted


async def test_a_rollout_in_the_queue_goes_on_saying_that_its_port_is_closed(store: Store) -> None:
    uid = (await submit(store))[0]
    held = await claim(store, uid)
    noted = waiting()
    await store.waits.note(uid, held.attempt, noted, batch=True)
    await store.rollouts.give_back(held, clean=True, counter="deferrals", delay_s=5.0, why="closed")
    assert await own(store, uid) == noted


async def test_a_note_that_is_out_of_date_or_foreign_does_not_count(store: Store, raw: FakeAsyncRedis) -> None:
    batch = new_batch(1)
    await store.batches.submit(batch)
    uid = uids_of(batch)[0]
    held = await claim(store, uid)
    await store.waits.note(uid, held.attempt, waiting(next_in_s=-STALE_SECONDS - 1), batch=True)
    await raw.hset(keys.batch(batch.batch_id), f"{FIELD}http://other", '{"later": "version"}')
    assert await read(store, batch.batch_id) == []
    assert await own(store, uid) is None
    await raw.hset(keys.rollout(uid), "waits", "1 nonsense")
    assert await own(store, uid) is None


async def test_nothing_is_written_for_a_batch_that_is_gone_or_over(store: Store, raw: FakeAsyncRedis) -> None:
    gone = new_batch(1)
    await store.waits.note(uids_of(gone)[0], 1, waiting(), batch=True)
    assert not await raw.exists(keys.batch(gone.batch_id), keys.rollout(uids_of(gone)[0]))
    uid = (await submit(store))[0]
    claimed = await claim(store, uid)
    await store.waits.note(uid, 1, waiting(), batch=True)
    await store.rollouts.finish(claimed, result_of(claimed))
    await store.waits.note(uid, 1, waiting(), batch=True)
    assert await read(store, claimed.batch_id) == []
    assert not await raw.hexists(keys.rollout(uid), "waits")


async def waited(store: Store, uid: str) -> Waiting | None:
    data = await store.rollouts.result(uid)
    assert data is not None
    found = orjson.loads(data)["waited_for"]
    return None if found is None else Waiting.model_validate(found)


async def test_rollouts_that_end_from_outside_say_what_they_waited_for_themselves(store: Store) -> None:
    batch = new_batch(5, shared={"server_url": URL})
    await store.batches.submit(batch)
    noted = waiting()
    uids = uids_of(batch)
    for number, uid in enumerate(uids[:4]):
        held = await claim(store, uid)
        # The batch waits at this endpoint, and the fourth rollout does not.
        if number < 3:
            await store.waits.note(uid, held.attempt, noted, batch=True)
    await store.rollouts.settle(batch.batch_id, 0, RolloutEnd(RolloutStatus.EXPIRED, FinishReason.DEADLINE))
    await store.rollouts.cancel(uids[1])
    await store.batches.cancel(batch.batch_id)
    assert [await waited(store, uid) for uid in uids[:4]] == [noted, noted, noted, None]
    # No worker has announced itself, and the last one was never claimed.
    queued = await waited(store, uids[4])
    assert queued is not None
    assert queued.waits_for is WaitsFor.WORKER


async def test_a_rollout_that_fails_has_not_waited(store: Store) -> None:
    uid = (await submit(store))[0]
    held = await claim(store, uid)
    await store.waits.note(uid, held.attempt, waiting(), batch=True)
    failure = WorkerFault("lost").failure(None)
    await store.rollouts.settle(held.batch_id, held.index, RolloutEnd.failed(failure))
    assert await waited(store, uid) is None
