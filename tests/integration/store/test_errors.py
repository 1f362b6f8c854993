"""What Redis refuses arrives as the store's own errors, without URL or password."""

import asyncio
import secrets
import socket
from contextlib import suppress

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.support.batches import claim, new_batch, result_of, submit
from tests.support.journals import turn_record

from rolloutpool_common.store import Store, StoreFull, StoreUnavailable


async def test_nobody_at_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        password = secrets.token_hex()
        store = Store.open(f"redis://:{password}@127.0.0.1:{taken.getsockname()[1]}/0")
        with pytest.raises(StoreUnavailable) as caught:
            await store.ping()
        assert password not in caught.value.message
        assert "ROLLOUTPOOL_REDIS_URL" in caught.value.message
        await store.close()


async def test_a_full_redis_refuses_a_batch_whole(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    await raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreFull):
            await store.batches.submit(new_batch(3))
        with pytest.raises(StoreFull):
            await store.rollouts.finish(claimed, result_of(claimed))
        with pytest.raises(StoreFull):
            await store.rollouts.journal(claimed, [turn_record(1)], turns=1)
    finally:
        await raw.config_set("maxmemory", "0")
    await store.rollouts.finish(claimed, result_of(claimed))


async def test_a_read_only_redis_is_unavailable(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    await raw.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await submit(store)
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await store.rollouts.claim(uid, "w1")
    finally:
        await raw.replicaof("NO", "ONE")


async def test_more_callers_than_connections_wait_their_turn(redis_url: str) -> None:
    store = Store.open(redis_url, max_connections=2)
    assert len(await asyncio.gather(*(store.ping() for _ in range(200)))) == 200
    await store.close()


async def test_a_redis_that_runs_a_long_script_is_unavailable(store: Store, raw: Redis, redis_url: str) -> None:
    await store.ping()
    await raw.config_set("lua-time-limit", "1")
    blocker = Redis.from_url(redis_url)

    async def block() -> None:
        with suppress(ResponseError):
            await blocker.eval("while true do end", 0)

    running = asyncio.create_task(block())
    try:
        await asyncio.sleep(0.2)
        with pytest.raises(StoreUnavailable, match="SCRIPT KILL"):
            await store.ping()
        with pytest.raises(StoreUnavailable, match="SCRIPT KILL"):
            await submit(store)
    finally:
        await raw.script_kill()
        await running
        await raw.config_set("lua-time-limit", "5000")
        await blocker.aclose()
    await submit(store)


async def test_a_value_that_redis_finds_too_large_says_which_setting(store: Store, raw: Redis) -> None:
    await raw.config_set("proto-max-bulk-len", str(1024**2))
    try:
        with pytest.raises(StoreUnavailable, match="proto-max-bulk-len"):
            await submit(store, [{"metadata": {"x": "y" * (1024**2 + 1)}}])
    finally:
        await raw.config_set("proto-max-bulk-len", str(512 * 1024**2))
    await submit(store)


def test_a_connection_that_uvloop_has_closed_is_replaced(redis_url: str) -> None:
    async def use() -> None:
        store = Store.open(redis_url)
        await store.ping()
        pool = store.connection.redis.connection_pool
        for call in (store.ping, store.totals.read, lambda: submit(store)):
            connection = await pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)
            await pool.release(connection)
            await call()
        await store.close()

    uvloop.run(use())
