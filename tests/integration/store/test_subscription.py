"""A subscription hears what is published while it is connected, and says when it is not."""

import asyncio
from collections.abc import Callable

import pytest
import redis.asyncio
from tests.support.redis_proxy import hangs, redis_proxy
from tests.support.secrets import SECRETS
from tests.support.waiting import until, until_true

from rolloutpool_common.store import Store, StoreError, StoreUnavailable, subscription

CHANNEL = "rp:news"


def listens(store: Store, hear: Callable[[bytes], None]) -> "asyncio.Future[None]":
    return asyncio.ensure_future(store.connection.subscribe(CHANNEL, hear))


async def subscribed(raw: "redis.asyncio.Redis", many: int = 1) -> None:
    async def there() -> bool:
        return bool((await raw.pubsub_numsub(CHANNEL))[0][1] == many)

    await until(there)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_it_hears_what_is_published(redis_url: str, raw: "redis.asyncio.Redis", protocol: int) -> None:
    store, heard = Store.open(f"{redis_url}?protocol={protocol}", secrets=SECRETS), list[bytes]()
    task = listens(store, heard.append)
    await subscribed(raw)
    long = "x" * 300_000
    for text in ("one", long, "two\nlines"):
        await raw.publish(CHANNEL, text)
    await until_true(lambda: len(heard) == 3)
    assert heard == [b"one", long.encode(), b"two\nlines"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await subscribed(raw, 0)
    await store.close()


async def test_a_connection_that_is_cut_ends_it(store: Store, raw: "redis.asyncio.Redis") -> None:
    task = listens(store, lambda _: None)
    await subscribed(raw)
    await raw.client_kill_filter(_type="pubsub")
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(task, 5)


async def test_a_connection_that_says_nothing_more_ends_it(
    redis_url: str, raw: "redis.asyncio.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that was cut. It is asked twice, because what is silent may just have nothing to say."""
    monkeypatch.setattr(subscription, "PING_SECONDS", 0.1)
    async with redis_proxy(redis_url) as proxy:
        store = Store.open(proxy.url, secrets=SECRETS)
        task = listens(store, lambda _: None)
        await subscribed(raw)
        await asyncio.sleep(0.5)
        assert not task.done()
        proxy.manner = lambda _: hangs(600)
        await raw.client_kill_filter(_type="pubsub")
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(task, 5)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.connection.subscribe(CHANNEL, lambda _: None), 10)
        await store.close()


async def test_a_channel_that_is_not_allowed_says_so(redis_url: str, raw: "redis.asyncio.Redis") -> None:
    await raw.acl_setuser("mute", enabled=True, passwords=["+x"], keys=["*"], categories=["+@all"], reset_channels=True)
    store = Store.open(redis_url.replace("://", "://mute:x@"), secrets=SECRETS)
    try:
        with pytest.raises(StoreError, match="forbids this account"):
            await asyncio.wait_for(store.connection.subscribe(CHANNEL, lambda _: None), 5)
    finally:
        await store.close()
        await raw.acl_deluser("mute")
