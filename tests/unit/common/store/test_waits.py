"""What a batch's rollouts wait for is read with the batch, and carried by those that end meanwhile."""

from datetime import UTC, datetime, timedelta

import orjson
from fakeredis import FakeAsyncRedis, FakeServer
from tests.support.batches import OWNER, claim, new_batch, result_of, submit, uids_of

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
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
    status = await store.batches.status(batch_id, OWNER)
    assert status is not None
    return status.waiting


async def test_a_note_is_read_with_the_batch_until_it_is_taken_away(store: Store) -> None:
    batch = new_batch(2)
    await store.batches.submit(batch)
    assert await read(store, batch.batch_id) == []
    noted, other = waiting(), waiting("http://trainer:8082")
    await store.waits.note(batch.batch_id, other)
    await store.waits.note(batch.batch_id, waiting())
    await store.waits.note(batch.batch_id, noted)
    assert await read(store, batch.batch_id) == [noted, other]
    await store.waits.clear(batch.batch_id, URL)
    assert await read(store, batch.batch_id) == [other]


async def test_a_note_that_is_out_of_date_or_foreign_does_not_count(store: Store, server: FakeServer) -> None:
    batch = new_batch(1)
    await store.batches.submit(batch)
    await store.waits.note(batch.batch_id, waiting(next_in_s=-STALE_SECONDS - 1))
    await FakeAsyncRedis(server=server).hset(keys.batch(batch.batch_id), f"{FIELD}http://other", '{"later": "version"}')
    assert await read(store, batch.batch_id) == []


async def test_nothing_is_written_for_a_batch_that_is_gone_or_over(store: Store, server: FakeServer) -> None:
    await store.waits.note("no-such-batch", waiting())
    assert not await FakeAsyncRedis(server=server).exists(keys.batch("no-such-batch"))
    uid = (await submit(store))[0]
    batch_id = uid.rpartition("-")[0]
    await store.waits.note(batch_id, waiting())
    claimed = await claim(store, uid)
    await store.rollouts.finish(claimed, result_of(claimed))
    await store.waits.note(batch_id, waiting())
    assert await read(store, batch_id) == []


async def test_rollouts_that_end_from_outside_say_what_they_waited_for(store: Store) -> None:
    batch = new_batch(3, shared={"server_url": URL})
    await store.batches.submit(batch)
    noted = waiting()
    await store.waits.note(batch.batch_id, noted)
    await store.waits.note(batch.batch_id, waiting("http://elsewhere"))
    first, second, third = uids_of(batch)
    await store.rollouts.settle(batch.batch_id, 0, RolloutStatus.EXPIRED, FinishReason.DEADLINE, None)
    await store.rollouts.cancel(second)
    await store.batches.cancel(batch.batch_id)
    for uid in (first, second, third):
        data = await store.rollouts.result(uid)
        assert data is not None
        assert Waiting.model_validate(orjson.loads(data)["waited_for"]) == noted


async def test_a_rollout_that_did_not_wait_says_nothing(store: Store) -> None:
    batch = new_batch(1, shared={"server_url": "http://another"})
    await store.batches.submit(batch)
    await store.waits.note(batch.batch_id, waiting())
    await store.batches.cancel(batch.batch_id)
    data = await store.rollouts.result(uids_of(batch)[0])
    assert data is not None
    assert orjson.loads(data)["waited_for"] is None
