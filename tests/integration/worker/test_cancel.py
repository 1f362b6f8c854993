"""Cancel: whatever a rollout is doing, it is cancelled when the caller has an answer; its worker stops within a second.

The stop is an order that the cancelling script itself leaves with the worker, who fetches it with its next beat; so a
second holds on a calm machine. These tests allow a busy one, and everything that they cancel would last much longer.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.batches import OWNER, status_of, view_of
from tests.support.pool import Pool, opened_pool
from tests.support.ports import free_port
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Scripts, call, hang, say, status
from tests.support.waiting import until
from tests.support.worker_process import ROOT, Worker, started_worker

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import ClaimRefused
from rolloutpool_worker.policy.breaker import FAILURES

SOON = 5.0
"""Seconds; calls, tools and pauses here would last at least six times as long."""


@asynccontextmanager
async def patient_pool(redis_url: str, **env: str) -> AsyncIterator[tuple[Pool, Worker]]:
    """A pool with one worker whose tools and calls may last for ten minutes."""
    settings = {
        "ROLLOUTPOOL_PLUGINS": "tests.support.plugins",
        "ROLLOUTPOOL_TOOL_TIMEOUT": "600",
        "HTTP_CLIENT_TIMEOUT": "600",
        **env,
    }
    async with opened_pool(redis_url) as pool:
        with started_worker(redis_url, [ROOT], **settings) as worker:
            await worker.announced(pool.store)
            yield pool, worker


async def cancel(pool: Pool, uid: str) -> None:
    """Cancels it twice; it is cancelled, for good, and its result says so."""
    for _ in range(2):
        began = time.monotonic()
        assert await pool.store.rollouts.cancel(uid) is RolloutStatus.CANCELLED
        view = await pool.store.rollouts.view(uid, OWNER)
        assert time.monotonic() - began < SOON
        assert view is not None
        assert view.status is RolloutStatus.CANCELLED
    result = await pool.result(uid)
    assert (result.status, result.finish_reason) == (RolloutStatus.CANCELLED, FinishReason.CANCELLED)
    assert (result.samples, result.failure) == ([], None)
    assert await pool.store.rollouts.claim(uid, "another") == ClaimRefused("ended")


async def idle(pool: Pool) -> bool:
    """Whether the worker itself says that it runs nothing."""
    (worker,) = await pool.store.workers.known()
    return worker.running == 0


async def test_wherever_a_running_rollout_is_it_stops(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """In a model call, in a tool, and between two calls of a turn, because its trainer asked for half a minute."""
    scripts: Scripts = {"call": [hang()], "tool": [say("8", [call("hang")])], "pause": [status(429, retry_after="30")]}
    async with patient_pool(redis_url) as (pool, worker), scripted_trainer(tokenizer, scripts=scripts) as trainer:
        asks = [{"messages": [{"role": "user", "content": text}]} for text in ("call", "tool", "pause")]
        uids = await pool.submit(asks, shared={"server_url": trainer.url})

        async def there() -> bool:
            tool = await view_of(pool.store, uids[1])
            pauses = "rollouts wait for trainer" in worker.log()
            return {r.uid for r in trainer.exchanges} == set(uids) and tool.turns == 1 and pauses

        await until(there)
        began = time.monotonic()
        for uid in uids:
            await cancel(pool, uid)
        await until(lambda: idle(pool))
        assert time.monotonic() - began < 3 * SOON
        # Its slot is free, and the worker none the worse for it.
        after = (await pool.submit([{"messages": [{"role": "user", "content": "tool"}]}]))[0]
        await cancel(pool, after)
        assert len(trainer.exchanges) == 3
        assert "Traceback" not in worker.log()


async def test_what_waits_for_a_dead_port_or_for_a_worker_is_cancelled_where_it_waits(redis_url: str) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with patient_pool(redis_url, ROLLOUTPOOL_TRAINER_ATTEMPTS="1") as (pool, worker):
        # As many as it takes to have the port taken out, each with a failure of its own, and some that then park.
        uids = await pool.submit(FAILURES + 3, shared={"server_url": nobody})

        async def waiting() -> bool:
            views = [await pool.store.rollouts.view(uid, OWNER) for uid in uids]
            return all(view is not None and view.attempt == 1 and view.worker is None for view in views)

        await until(waiting)
        assert (await pool.store.totals.read()).delayed == len(uids)
        for uid in uids:
            await cancel(pool, uid)
        standing = await pool.store.totals.read()
        assert (standing.delayed, standing.open) == (0, 0)
        worker.terminate()
        assert await worker.ended() == 0, worker.log()
        # Nobody is there to run it: queued, with its ticket in the broker.
        (queued,) = await pool.submit(shared={"server_url": nobody})
        await cancel(pool, queued)


async def test_cancel_against_the_last_reply_has_one_outcome(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """Whichever comes first stands; nobody sees the other."""
    async with patient_pool(redis_url) as (pool, _), scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await pool.submit(40, shared={"server_url": trainer.url})
        said = dict(zip(uids, await asyncio.gather(*map(pool.store.rollouts.cancel, uids)), strict=True))
        results = {uid: (await pool.result(uid)).status for uid in uids}
        await until(lambda: idle(pool))
        assert results == said
        assert set(results.values()) <= {RolloutStatus.CANCELLED, RolloutStatus.COMPLETED}
        status = await status_of(pool.store, uids[0])
        assert status.counts[RolloutStatus.CANCELLED] + status.counts[RolloutStatus.COMPLETED] == 40
        # And it stays so.
        assert {uid: (await pool.result(uid)).status for uid in uids} == results
