"""Whoever waits for Redis can be stopped, at every point of the wait."""

import asyncio
from collections.abc import Awaitable

import pytest
from redis.asyncio import Redis
from tests.support.waiting import until

from rolloutpool_common.store import Store, redis_compat, sender
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


async def test_connections_that_nobody_uses_are_closed(
    redis_url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_compat, "UNUSED_SECONDS", 0.3)
    opened = Connection(redis_url)

    async def count() -> int:
        return len(await raw.client_list()) - before

    before = len(await raw.client_list())
    assert await asyncio.gather(*(opened.redis.echo(f"{n}") for n in range(8))) == [b"%d" % n for n in range(8)]
    assert await count() > 1
    # One is in use all the time, and stays.
    for n in range(30):
        assert await opened.redis.echo(f"{n}") == b"%d" % n
        await asyncio.sleep(0.05)
    assert await count() == 1
    await until(lambda: _is(count(), 0))
    assert await opened.redis.echo("again") == b"again"
    await opened.close()
    # Redis notices it a moment later.
    await until(lambda: _is(count(), 0))


async def test_a_line_for_large_calls_is_not_kept(redis_url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "UNUSED_SECONDS", 0.3)
    opened = Connection(redis_url)
    before = len(await raw.client_list())
    for _ in range(2):
        large = "x" * (sender.LARGE + 1)
        assert len(await opened.command("ECHO", large)) == len(large)
        assert await opened.command("ECHO", "x") == b"x"
        assert len(await raw.client_list()) - before == 2
        await until(lambda: _is(_clients(raw), before + 1))
    await opened.close()


async def _clients(raw: Redis) -> int:
    return len(await raw.client_list())


async def _is(number: Awaitable[int], expected: int) -> bool:
    return await number == expected
