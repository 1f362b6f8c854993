"""Cancel: whatever a rollout is doing, it is cancelled when the caller has an answer; its worker stops within a second.

The stop is an order that the cancelling script itself leaves with the worker, who fetches it with its next beat; so a
second holds on a calm machine. These tests allow a busy one, and everything that they cancel would last much longer.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from tests.support.bad_trainer import Received, bad_trainer, completion, send
from tests.support.batches import OWNER
from tests.support.pool import Pool, opened_pool
from tests.support.redis_server import free_port
from tests.support.waiting import until
from tests.support.worker_process import ROOT, Worker, started_worker

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import Delivery
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import ClaimRefused
from rolloutpool_common.store.workers import BEAT_SECONDS
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
    call = {"id": "c1", "type": "function", "function": {"name": "hang", "arguments": "{}"}}

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        match request.document["messages"][0]["content"]:
            case "call":
                await asyncio.Event().wait()
            case "tool":
                choices = [{"message": {"role": "assistant", "content": "8", "tool_calls": [call]}}]
                await send(writer, 200, orjson.dumps(completion(tokenizer, request, choices=choices)))
            case "pause":
                await send(writer, 429, headers=(("Retry-After", "30"),))

    async with patient_pool(redis_url) as (pool, worker), bad_trainer(answer) as trainer:
        asks = [{"messages": [{"role": "user", "content": text}]} for text in ("call", "tool", "pause")]
        uids = await pool.submit(asks, shared={"server_url": trainer.url})

        async def there() -> bool:
            tool = await pool.store.rollouts.view(uids[1], OWNER)
            assert tool is not None
            return {r.uid for r in trainer.requests} == set(uids) and tool.turns == 1 and "again in" in worker.log()

        await until(there)
        began = time.monotonic()
        for uid in uids:
            await cancel(pool, uid)
        await until(lambda: idle(pool))
        assert time.monotonic() - began < 3 * SOON
        # Its slot is free, and the worker none the worse for it.
        after = (await pool.submit([{"messages": [{"role": "user", "content": "tool"}]}]))[0]
        await cancel(pool, after)
        assert len(trainer.requests) == 3
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

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, orjson.dumps(completion(tokenizer, request)))

    async with patient_pool(redis_url) as (pool, _), bad_trainer(answer) as trainer:
        uids = await pool.submit(40, shared={"server_url": trainer.url})
        said = dict(zip(uids, await asyncio.gather(*map(pool.store.rollouts.cancel, uids)), strict=True))
        results = {uid: (await pool.result(uid)).status for uid in uids}
        await until(lambda: idle(pool))
        assert results == said
        assert set(results.values()) <= {RolloutStatus.CANCELLED, RolloutStatus.COMPLETED}
        status = await pool.store.batches.status(uids[0].rpartition("-")[0], OWNER)
        assert status is not None
        assert status.counts[RolloutStatus.CANCELLED] + status.counts[RolloutStatus.COMPLETED] == 40
        # And it stays so.
        assert {uid: (await pool.result(uid)).status for uid in uids} == results


async def test_cancel_after_the_end_stops_only_the_delivery(redis_url: str, tokenizer: ChatTokenizer) -> None:
    pushes = 0

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal pushes
        if request.header("webhook-id"):
            pushes += 1
            await send(writer, 503)
        else:
            await send(writer, 200, orjson.dumps(completion(tokenizer, request)))

    async with patient_pool(redis_url) as (pool, _), bad_trainer(answer) as trainer:
        to = Delivery(callback_url=f"{trainer.url}/hook", secret="long enough")
        (uid,) = await pool.submit(shared={"server_url": trainer.url}, delivery=to)
        before = await pool.result(uid)

        async def refused() -> bool:
            return pushes > 0

        # It is refused, so it stays due.
        await until(refused)
        assert await pool.store.rollouts.cancel(uid) is RolloutStatus.COMPLETED
        assert await pool.result(uid) == before
        status = await pool.store.batches.status(uid.rpartition("-")[0], OWNER)
        assert status is not None
        assert {state: n for state, n in status.delivery.items() if n} == {"stopped": 1}
        assert (await pool.store.totals.read()).pushes_pending == 0


async def test_the_order_to_stop_is_there_before_the_answer(redis_url: str) -> None:
    """No round of anybody's polling lies between cancel and order; the worker fetches it within a beat."""
    async with opened_pool(redis_url) as pool:
        (uid,) = await pool.submit()
        held = await pool.store.rollouts.claim(uid, "w")
        assert not isinstance(held, ClaimRefused)
        await pool.store.rollouts.cancel(uid)
        assert (await pool.store.workers.beat("w", running=1, tokenizers={}))[1] == [held.token]
    assert BEAT_SECONDS <= 0.5
