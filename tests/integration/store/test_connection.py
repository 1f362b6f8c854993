"""Whoever waits for Redis can be stopped, at every point of the wait."""

import asyncio

import pytest
from redis.asyncio import Redis

from rolloutpool_common.store import Store
from rolloutpool_common.store.connection import Connection


async def test_a_task_that_talks_to_redis_can_be_cancelled_at_every_step(store: Store) -> None:
    async def talk() -> None:
        while True:
            await store.ping()

    await store.ping()
    for steps in range(200):
        task = asyncio.create_task(talk())
        for _ in range(3 + steps % 40):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done, f"the cancellation after {steps} steps was lost"
        assert task.cancelled()


async def test_signals_stop_at_once_while_they_wait_and_while_they_read(store: Store) -> None:
    for steps in range(30):
        await store.signals.start()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await store.signals.stop()


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix"])
async def test_every_kind_of_url_opens(scheme: str, redis_url: str) -> None:
    url = {"redis": redis_url, "rediss": redis_url.replace("redis:", "rediss:"), "unix": "unix:///nowhere.sock?db=1"}
    opened = Connection(url[scheme])
    pool = opened.redis.connection_pool
    made = pool.connection_class(**{k: v for k, v in pool.connection_kwargs.items() if k != "connection_class"})
    assert isinstance(opened.redis, Redis)
    assert made.socket_timeout == 30
    await opened.close()
