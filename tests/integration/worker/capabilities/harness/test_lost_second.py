"""Sessions over a Redis that is started again without its last second, as after a power cut."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.support.durable_redis import DurableRedis, durable_redis
from tests.support.harness import DoorProcess, LedPolicy, assert_all_once, running_door
from tests.support.open_sessions import opened
from tests.support.pool import Pool, opened_pool
from tests.support.waiting import until, until_true
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback


@pytest.fixture
async def lossy() -> AsyncIterator[tuple[DurableRedis, Pool, DoorProcess]]:
    with durable_redis() as redis:
        async with opened_pool(redis.url) as pool, pool.reconciled():
            with running_door(redis.url) as door:
                yield redis, pool, door


async def takes(pool: Pool, uid: str, calls: int) -> None:
    async def taken() -> bool:
        return (await Sessions(pool.store).state(uid)).calls == calls

    await until(taken, 20)


async def test_calls_that_are_held_are_stored_once_more(
    lossy: tuple[DurableRedis, Pool, DoorProcess], led: LedPolicy, led_url: str
) -> None:
    """Another door stores as many messages meanwhile as this one takes to be stored."""
    redis, pool, door = lossy
    before = len(led.sampled)
    with running_door(redis.url) as other:
        session = await opened(pool, door, led_url)
        one = session.program()
        redis.mark()
        lost = asyncio.ensure_future(one.run("do 1"))
        await takes(pool, session.uid, 1)
        assert redis.lose_tail() > 0
        two = session.program(system="You are another program.")
        two.url = two.url.replace(door.url, other.url)
        two.say("do 1")
        found = asyncio.ensure_future(two.run("in the other door"))
        await takes(pool, session.uid, 2)
        with started_worker(redis.url, [ROOT]):
            await asyncio.wait_for(asyncio.gather(lost, found), 40)
            result = await session.end()
    assert result.failure is None
    assert_all_once(result, led.sampled[before:])


async def test_a_new_call_gets_no_reply_of_a_lost_one(
    lossy: tuple[DurableRedis, Pool, DoorProcess], tokenizer: ChatTokenizer
) -> None:
    """The policy samples while Redis forgets the call; the worker has it, and the program then goes on."""
    redis, pool, door = lossy
    slow, gate = LedPolicy(tokenizer), threading.Event()

    async def generate(prompt_ids: list[int], params: Any) -> Any:
        sampled = await slow(prompt_ids, params)
        await asyncio.to_thread(gate.wait)
        return sampled

    with (
        serve_callback(callback_app(generate, tokenizer=tokenizer), [0]) as served,
        started_worker(redis.url, [ROOT]) as worker,
    ):
        await worker.announced(pool.store)
        session = await opened(pool, door, served.url)
        redis.mark()
        program = session.program()
        runs = asyncio.ensure_future(program.run("do 2"))
        await until_true(lambda: slow.sampled, 20)
        assert redis.lose_tail() > 0
        await takes(pool, session.uid, 1)
        gate.set()
        await asyncio.wait_for(runs, 40)
        result = await session.end()
    assert [one["content"] for one in program.history if one["role"] == "tool"] == ["0", "1"]
    assert_all_once(result, slow.sampled)


async def test_a_session_of_which_calls_are_lost_for_good_fails_soon(
    lossy: tuple[DurableRedis, Pool, DoorProcess], led_url: str
) -> None:
    """Its program has the reply, so it asks on, and nobody has the call before."""
    redis, pool, door = lossy
    with started_worker(redis.url, [ROOT]) as worker:
        await worker.announced(pool.store)
        session = await opened(pool, door, led_url)
        program = session.program(timeout=20)
        program.say("do 3")
        program.answer((await program.call())[1])
        redis.mark()
        program.answer((await program.call())[1])
        assert redis.lose_tail() > 0
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await program.call()
        assert refused.value.response.json()["error"]["code"] == "session_ended"
        result = await pool.result(session.uid)
    assert result.failure is not None
    assert (result.failure.category, result.reward) == ("harness_lost", None)
    assert "has lost a call" in result.failure.message
