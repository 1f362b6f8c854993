"""Sessions together with what else a rollout may have: graders, groups, runs, neighbours, a small context."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.batches import OWNER
from tests.support.harness import DoorProcess, LedEngine, LedPolicy, assert_all_once, running_door
from tests.support.open_sessions import OpenedSession
from tests.support.pool import Pool, opened_pool
from tests.support.vllm_server import vllm_server
from tests.support.waiting import until
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.rendering import ChatTokenizer

EXTERNAL = {"harness": {"external": True}, "max_tokens_total": 100_000}


@contextlib.asynccontextmanager
async def pool_with_graders(redis_url: str, log: Path) -> AsyncIterator[tuple[Pool, DoorProcess]]:
    env = {"ROLLOUTPOOL_PLUGINS": "tests.support.graders", "GRADER_LOG": str(log)}
    async with opened_pool(redis_url) as pool, pool.reconciled():
        with running_door(redis_url) as door, started_worker(redis_url, [ROOT], **env) as worker:
            await worker.announced(pool.store)
            yield pool, door


async def session_of(pool: Pool, door: DoorProcess, uid: str) -> OpenedSession:
    found = await Sessions(pool.store).open(uid)
    assert found is not None
    return OpenedSession(pool, door, uid, await Sessions(pool.store).key(found))


async def test_a_grader_says_what_a_session_is_worth_and_each_trained_token(
    redis_url: str, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    async with pool_with_graders(redis_url, tmp_path / "log") as (pool, door):
        grader = {"grader": {"name": "returns", "options": "rewards per token"}}
        asks = {"harness": True, "grading": True}
        (uid,) = await pool.submit(shared={**EXTERNAL, **grader, "server_url": led_url}, asks=asks)
        session = await session_of(pool, door, uid)
        program = session.program()
        await program.run("do 1")
        # A reply that is dropped is cut off, and has no rewards.
        program.history.pop()
        await program.run("do 1")
        result = await session.end(reward=None)
    assert (result.reward, result.failure) == (1.0, None)
    assert result.token_rewards is not None
    assert [len(row) for row in result.token_rewards] == [len(sample.response_ids) for sample in result.samples]
    assert result.harness is not None
    assert sum(line.tokens for line in result.harness.lines) == sum(map(len, led.sampled[before:]))


async def test_a_group_of_sessions_is_graded_together_with_one_that_has_used_up_its_tokens(
    redis_url: str, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    """Its program waits for a reply that it can never get, and is told so at once."""
    async with pool_with_graders(redis_url, tmp_path / "log") as (pool, door):
        shared = {**EXTERNAL, "grader": {"name": "ranks"}, "server_url": led_url}
        uids = await pool.submit(
            [{}, {"max_tokens_total": 1}],
            shared=shared,
            groups=["g", "g"],
            group_policy=GroupPolicy(min_usable=2),
            asks={"harness": True, "grading": True},
        )
        first, second = [await session_of(pool, door, uid) for uid in uids]
        used_up = second.program(timeout=20)
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await used_up.run("do 3")
        assert refused.value.response.status_code == 403
        await first.program().run("do 1")
        assert await Sessions(pool.store).end(second.uid, SessionEnd()) == "ok"
        results = [await first.end(reward=None), await pool.result(second.uid)]
    assert [one.finish_reason for one in results] == ["stop", "max_tokens"]
    assert sorted(one.reward or 0 for one in results) == [0.0, 1.0]


async def test_a_session_waits_while_its_run_is_paused(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    before = len(led.sampled)
    (uid,) = await pool.submit(shared={**EXTERNAL, "server_url": led_url}, run="r", asks={"harness": True})
    session = await session_of(pool, door, uid)
    program = session.program()
    program.say("do 1")
    _, calls = await program.call()
    program.answer(calls)
    await Runs(pool.store).pause(OWNER, "r", limit_s=600)
    asked = asyncio.ensure_future(program.call())
    async with pool.reconciled():
        await asyncio.sleep(7)
        assert (len(led.sampled) - before, asked.done()) == (1, False)
        await Runs(pool.store).resume(OWNER, "r")
        await asked
        result = await session.end()
    assert_all_once(result, led.sampled[before:])


async def test_a_batch_of_sessions_and_plain_rollouts(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    before = len(led.sampled)
    shared = {"server_url": led_url, "max_tokens_total": 100_000, "messages": [{"role": "user", "content": "do 0"}]}
    uids = await pool.submit([{"harness": {"external": True}}, {}], shared=shared, asks={"harness": True})
    plain = await pool.result(uids[1])
    assert (plain.status, plain.harness) == ("completed", None)
    assert await Sessions(pool.store).open(uids[1]) is None
    session = await session_of(pool, door, uids[0])
    await session.program().run("do 1")
    result = await session.end()
    turns = led.sampled[before:]
    assert_all_once(plain, turns[:1])
    assert_all_once(result, turns[1:])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "tool_call_id": "x", "content": "first"}],
        [{"role": "user", "content": ""}],
        [{"role": "system", "content": "alone"}],
        [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "a"}] * 3,
    ],
    ids=["tool first", "empty", "system alone", "system late", "empty reply", "users"],
)
@pytest.mark.parametrize("protocol", ["callback", "vllm"])
async def test_odd_histories_are_answered(
    redis_url: str, pool: Pool, door: DoorProcess, tokenizer: ChatTokenizer, led_url: str, messages: Any, protocol: str
) -> None:
    policy = LedEngine(tokenizer)

    async def sample(_: str, prompt: list[int], most: int) -> Any:
        return await policy.sample(_, [*tokenizer.encode("do 0"), *prompt], most)

    async with vllm_server(tokenizer, "unused") as engine:
        engine.sampler, engine.context = sample, 100_000
        url = engine.url if protocol == "vllm" else led_url
        if protocol == "callback":
            messages = [*messages, {"role": "user", "content": "do 0"}]
        (uid,) = await pool.submit(shared={**EXTERNAL, "server_url": url, "protocol": protocol}, asks={"harness": True})
        session = await session_of(pool, door, uid)
        program = session.program()
        program.history += messages
        await program.call()
        result = await session.end()
    assert result.failure is None


async def test_a_prompt_that_is_too_long_is_said_so_and_the_session_goes_on(
    redis_url: str, tokenizer: ChatTokenizer
) -> None:
    """Programs compact their history then, or leave the page away that they wanted to have summarised."""
    policy = LedEngine(tokenizer)
    async with opened_pool(redis_url) as pool, pool.reconciled(), vllm_server(tokenizer, "unused") as engine:
        engine.sampler, engine.context = policy.sample, 2000
        shared = {**EXTERNAL, "server_url": engine.url, "protocol": "vllm"}
        with running_door(redis_url) as door, started_worker(redis_url, [ROOT]) as first:
            await first.announced(pool.store)
            (uid,) = await pool.submit(shared=shared, asks={"harness": True})
            session = await session_of(pool, door, uid)
            main, side = session.program(), session.program("messages", system="Summarise.", tools=False)
            await main.run("do 1")
            side.say("word " * 5000)
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await side.call()
            assert refused.value.response.status_code == 400
            assert "prompt is too long" in refused.value.response.json()["error"]["message"]
            main.say("do 9 " + "word " * 5000)
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await main.call()
            assert refused.value.response.json()["error"]["code"] == "context_length_exceeded"
            first.kill()
            with started_worker(redis_url, [ROOT]):
                # Another worker reads the same calls, and asks none of them again.
                again = session.program()
                await again.run("What was said before; do 1")
                result = await session.end()
    assert (result.status, result.failure) == ("completed", None)
    assert_all_once(result, policy.sampled)
    assert result.harness is not None
    assert [(line.kind, line.turns) for line in result.harness.lines] == [("main", 2), ("side", 0), ("continuation", 2)]


@pytest.mark.slow
async def test_a_session_that_is_idle_at_its_deadline_delivers_what_was_sampled(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    """It comes back to a worker before, because in the queue it would expire with nothing."""
    before = len(led.sampled)
    shared = {**EXTERNAL, "server_url": led_url}
    async with pool.reconciled():
        (uid,) = await pool.submit(shared=shared, asks={"harness": True}, deadline_s=25)
        session = await session_of(pool, door, uid)
        await session.program().run("do 1")

        async def idle() -> bool:
            return await pool.store.connection.redis.zscore("rp:delayed", uid) is not None

        await until(idle, 20)
        result = await pool.result(uid, 40)
    assert (result.status, result.failure) == ("expired", None)
    assert_all_once(result, led.sampled[before:])
