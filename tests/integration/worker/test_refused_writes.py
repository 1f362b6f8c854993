"""A Redis that refuses all writes for a while, as in a fail-over: a worker waits, and goes on as the same process."""

import asyncio

import pytest
from redis.asyncio import Redis
from tests.support.pool import opened_pool
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

REFUSED_SECONDS = 4.0


@pytest.mark.slow
async def test_a_worker_outlives_a_redis_that_takes_no_writes(redis_url: str, tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.2, turns=8), tokenizer=tokenizer)
    asks = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(12)]
    async with opened_pool(redis_url) as pool, Redis.from_url(redis_url) as raw:
        with serve_callback(app, [0]) as served, started_worker(redis_url) as worker:
            known = await worker.announced(pool.store)
            before = await pool.submit(asks, shared={"server_url": served.url})
            await asyncio.sleep(0.5)
            await raw.config_set("min-replicas-to-write", 1)
            try:
                await asyncio.sleep(REFUSED_SECONDS)
            finally:
                await raw.config_set("min-replicas-to-write", 0)
            after = await pool.submit(asks, shared={"server_url": served.url})
            async with pool.reconciled():
                results = [await pool.result(uid) for uid in (*before, *after)]
            assert worker.process.poll() is None, worker.log()
            assert "Unrecoverable" not in worker.log()
    assert {(result.status, result.worker) for result in results} == {(RolloutStatus.COMPLETED, known.worker_id)}
    assert {result.attempt for result in results} == {1}
    assert app.sampling_log.repeated() == {}
