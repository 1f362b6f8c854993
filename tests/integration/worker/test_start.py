"""A worker's start, its announcement and its end, with real processes: announced means that it takes work."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from tests.support.pool import Pool, opened_pool
from tests.support.waiting import until
from tests.support.worker_process import started_worker

CONSUMING_WITHIN = 0.3
"""Seconds from the announcement until the consumer waits for messages; it was 0.6 and more on an idle machine."""


@pytest.fixture
async def idle_pool(redis_url: str) -> AsyncIterator[Pool]:
    """A pool without workers."""
    async with opened_pool(redis_url) as pool:
        yield pool


async def waits_for_messages(raw: Redis) -> bool:
    """Whether some client of this Redis is in a BRPOP, as Celery's consumer is while it is idle."""
    return any(client["cmd"] == "brpop" for client in await raw.client_list())


async def test_an_announcement_means_consuming(idle_pool: Pool, redis_url: str) -> None:
    async with Redis.from_url(redis_url, decode_responses=True) as raw:
        with started_worker(redis_url) as worker:
            await worker.announced(idle_pool.store)
            await until(lambda: waits_for_messages(raw), CONSUMING_WITHIN)


@pytest.mark.parametrize("seconds", [0.3, 1.5, 2.5])
async def test_a_sigterm_during_the_start_ends_cleanly(idle_pool: Pool, redis_url: str, seconds: float) -> None:
    with started_worker(redis_url) as worker:
        await asyncio.sleep(seconds)
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() in (0, -signal.SIGTERM), worker.log()
        assert "Traceback" not in worker.log()
    assert await idle_pool.store.workers.known() == []
