"""A worker's start, its announcement and its end, with real processes: announced means that it takes work."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.support.batches import new_batch, uids_of
from tests.support.pool import Pool, opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say
from tests.support.waiting import until
from tests.support.worker_process import started_worker

from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.rendering import ChatTokenizer

CONSUMING_WITHIN = 0.3
"""Seconds from the announcement until the consumer waits for messages; it was 0.6 and more on an idle machine."""
CONNECTIONS = 7
"""Of a worker to Redis, at most: its lifeline, two of the store, and of Celery those that wait for messages and for
commands, one for events, and one for tickets. When it is idle, it has five."""


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


async def test_a_worker_keeps_few_connections_to_redis(
    idle_pool: Pool, redis_url: str, tokenizer: ChatTokenizer
) -> None:
    async with (
        Redis.from_url(redis_url, decode_responses=True) as raw,
        scripted_trainer(tokenizer, *[say("8")] * 32) as trainer,
    ):
        with started_worker(redis_url) as worker:
            await worker.announced(idle_pool.store)
            for uid in await idle_pool.submit([{}] * 32, shared={"server_url": trainer.url}):
                await idle_pool.result(uid, 30)
            # The worker's are those that end with it.
            with_it = {client["id"] for client in await raw.client_list()}
            worker.kill()
            await worker.ended()
        # Redis notices one after the other.
        seen: list[set[str]] = [with_it]

        async def all_are_gone() -> bool:
            seen.append({client["id"] for client in await raw.client_list()})
            return len(with_it - seen[-1]) > 1 and seen[-1] == seen[-2]

        await until(all_are_gone, 10)
    assert len(with_it - seen[-1]) <= CONNECTIONS


async def test_an_announcement_says_which_build_it_is(idle_pool: Pool, redis_url: str) -> None:
    with started_worker(redis_url, ROLLOUTPOOL_COMMIT="0123abc") as worker:
        await worker.announced(idle_pool.store)
        (known,) = await idle_pool.store.workers.known()
    assert (known.versions["commit"], known.versions["rolloutpool-worker"]) == (
        "0123abc",
        version("rolloutpool-worker"),
    )


@pytest.mark.parametrize("seconds", [0.3, 2.5])
async def test_a_sigterm_during_the_start_ends_cleanly(idle_pool: Pool, redis_url: str, seconds: float) -> None:
    # With its imports, and not forked.
    with started_worker(redis_url, run_by=["env"]) as worker:
        await asyncio.sleep(seconds)
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() in (0, -signal.SIGTERM), worker.log()
        assert "Traceback" not in worker.log()
    assert await idle_pool.store.workers.known() == []


async def test_a_sigterm_while_garbage_is_collected_ends_a_start(redis_url: str, tmp_path: Path) -> None:
    """What a callback of the collector raises is thrown away."""
    (tmp_path / "stopped_plugin.py").write_text(
        "import gc, os, signal\n"
        "gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGTERM))\n"
        "gc.collect()\n"
        "gc.callbacks.pop()\n"
    )
    with started_worker(redis_url, [tmp_path], ROLLOUTPOOL_PLUGINS="stopped_plugin") as worker:
        assert await worker.ended() == 0


@pytest.mark.parametrize("per_message", [1, 8])
async def test_idle_workers_share_a_batch_although_one_came_up_first(
    idle_pool: Pool, redis_url: str, tokenizer: ChatTokenizer, per_message: int
) -> None:
    publisher = Publisher(idle_pool.store, redis_url, per_message=per_message)
    async with scripted_trainer(tokenizer, *[say("8")] * 64) as trainer:
        with started_worker(redis_url, ROLLOUTPOOL_WORKER_SLOTS="256") as first:
            await first.announced(idle_pool.store)
            await asyncio.sleep(1)
            with started_worker(redis_url, ROLLOUTPOOL_WORKER_SLOTS="256") as second:
                await second.announced(idle_pool.store)
                batch = new_batch(64, shared={"server_url": trainer.url})
                await idle_pool.store.batches.submit(batch)
                await publisher.pump()
                results = [await idle_pool.result(uid, 60) for uid in uids_of(batch)]
    publisher.close()
    shares = Counter(result.worker for result in results)
    assert len(shares) == 2
    assert min(shares.values()) >= 16


async def test_a_worker_that_is_left_alone_takes_all(idle_pool: Pool, redis_url: str, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, *[say("8")] * 64) as trainer:
        with started_worker(redis_url, ROLLOUTPOOL_WORKER_SLOTS="256") as gone:
            await gone.announced(idle_pool.store)
            with started_worker(redis_url, ROLLOUTPOOL_WORKER_SLOTS="256") as worker:
                left = await worker.announced(idle_pool.store)
                gone.kill()
                async with idle_pool.reconciled():
                    results = [
                        await idle_pool.result(uid, 60)
                        for uid in await idle_pool.submit(64, shared={"server_url": trainer.url})
                    ]
    assert {result.worker for result in results} == {left.worker_id}
