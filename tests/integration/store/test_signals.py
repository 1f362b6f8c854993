"""Signals may be spurious, but none is lost between two waits of one watch."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
from redis.asyncio import Redis
from tests.support.batches import batch_of, finish, submit
from tests.support.waiting import until

from rolloutpool_common.store import Store
from rolloutpool_common.store.keys import FINISHED


@pytest.fixture
async def listening(store: Store, raw: Redis) -> AsyncIterator[Store]:
    await store.signals.start()
    await until(lambda: blocked_clients(raw))
    yield store
    await store.signals.stop()


async def blocked_clients(raw: Redis) -> int:
    return int((await raw.info("clients"))["blocked_clients"])


async def test_a_waiter_wakes_for_its_batch_and_for_no_other(listening: Store, other: Store) -> None:
    (mine,), (theirs,) = await submit(other), await submit(other)
    async with (
        listening.signals.watch(batch_of(mine)) as watch,
        listening.signals.watch(batch_of(theirs)) as bystander,
    ):
        # The reader's first look wakes everybody who was there; take that away.
        await watch.wait(0)
        await bystander.wait(0)
        await finish(other, mine)
        assert await watch.wait(10)
        assert not await bystander.wait(0)
        assert not await watch.wait(0)


async def test_a_finish_before_the_wait_is_not_missed(listening: Store, other: Store, raw: Redis) -> None:
    (uid,) = await submit(other)
    async with listening.signals.watch(batch_of(uid)) as watch:
        await watch.wait(0)
        await finish(other, uid)
        # The reader has seen it and waits again, before anybody asks the watch.
        await until(lambda: blocked_clients(raw))
        assert await watch.wait(10)


async def test_a_waiter_that_goes_round_sees_all_of_many_finishes(listening: Store, other: Store) -> None:
    uids = await submit(other, 200)
    batch_id = batch_of(uids[0])
    seen = 0

    async def follow() -> None:
        nonlocal seen
        cursor = "0"
        async with listening.signals.watch(batch_id) as watch:
            while True:
                page = await listening.batches.results(batch_id, cursor, 50)
                seen, cursor = seen + len(page.items), page.next_cursor
                if page.complete:
                    return
                # A lost wake-up would sit here until the test's end.
                if not page.items:
                    assert await watch.wait(20)

    await asyncio.gather(follow(), *(finish(other, uid) for uid in uids))
    assert seen == 200


async def test_many_waiters_of_one_batch_all_wake(listening: Store, other: Store) -> None:
    (uid,) = await submit(other)

    async def waiter() -> bool:
        async with listening.signals.watch(batch_of(uid)) as watch:
            return await watch.wait(20)

    waiters = [asyncio.create_task(waiter()) for _ in range(300)]
    await asyncio.sleep(0)
    await finish(other, uid)
    assert await asyncio.gather(*waiters) == [True] * 300


async def test_a_cut_connection_loses_no_finish(listening: Store, other: Store, raw: Redis) -> None:
    uids = await submit(other, 20)
    async with listening.signals.watch(batch_of(uids[0])) as watch:
        for uid in uids:
            await watch.wait(0)
            (reader,) = [c for c in await raw.client_list() if c["cmd"] == "xread" and int(c["flags"].find("b")) >= 0]
            await raw.client_kill(reader["addr"])
            await finish(other, uid)
            assert await watch.wait(20)
            await until(lambda: blocked_clients(raw))


async def test_after_a_lost_stream_every_waiter_looks_again(listening: Store, other: Store, raw: Redis) -> None:
    (uid,) = await submit(other)
    async with listening.signals.watch(batch_of(uid)) as watch:
        await watch.wait(0)
        await raw.delete(FINISHED)
        await finish(other, uid)
        assert await watch.wait(20)


async def test_a_reader_that_stood_still_wakes_those_whose_signals_were_trimmed(
    listening: Store, other: Store, redis_url: str
) -> None:
    (uid,) = await submit(other)
    batch_id = batch_of(uid)
    async with listening.signals.watch(batch_id) as watch:
        await watch.wait(0)
        with redis.Redis.from_url(redis_url) as busy:
            # Nothing else runs in this loop meanwhile: the reader gets the first of these, and then what is left.
            pipe = busy.pipeline(transaction=False)
            for name in ("other", batch_id, *["other"] * 12_000):
                pipe.xadd(FINISHED, {"batch": name}, maxlen=10_000, approximate=True)
            pipe.execute()
            assert batch_id.encode() not in {entry[b"batch"] for _, entry in busy.xrange(FINISHED)}
        assert await watch.wait(20)


async def test_a_closed_watch_is_forgotten(store: Store) -> None:
    async with store.signals.watch("b"), store.signals.watch("b"):
        assert len(store.signals._watches["b"]) == 2
    assert not store.signals._watches
