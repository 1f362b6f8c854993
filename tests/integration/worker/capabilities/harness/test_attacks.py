"""Hostile and unlucky programs, and a pool that is unlucky: nobody else is harmed, and nothing is lost."""

import asyncio
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from tests.support.batches import claim, submit
from tests.support.durable_redis import durable_redis
from tests.support.harness import DoorProcess, LedEngine, LedPolicy, assert_all_once, client, running_door
from tests.support.open_sessions import ASKS, OpenedSession, opened
from tests.support.pool import Pool, opened_pool
from tests.support.vllm_server import vllm_server
from tests.support.waiting import eventually, until
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.capabilities.harness import runner
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime

USER = {"role": "user", "content": "do 0"}


async def posted(session: OpenedSession, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    async with client(session.url, session.key) as http:
        return await http.post(path, content=json.dumps({"model": "m", "max_tokens": 9, **body}))


async def test_a_session_goes_on_after_a_redis_that_was_away(
    tokenizer: ChatTokenizer, led: LedPolicy, led_url: str
) -> None:
    before = len(led.sampled)
    with durable_redis() as redis:
        async with opened_pool(redis.url) as pool:
            with running_door(redis.url) as door, started_worker(redis.url, [ROOT]) as worker:
                await worker.announced(pool.store)
                session = await opened(pool, door, led_url)
                program = session.program(headers={"x-client-request-id": "r1"})
                program.say("do 1")
                _, calls = await program.call()
                program.answer(calls)
                redis.kill()
                await asyncio.sleep(3)
                redis.start()
                program.headers = {}
                async with pool.reconciled():
                    await program.call()
                    result = await session.end()
    assert (result.status, result.attempt) == ("completed", 1)
    assert_all_once(result, led.sampled[before:])


@pytest.mark.parametrize("back", ["with all", "without its last second"])
@pytest.mark.parametrize("ends", ["while Redis is away", "later"])
async def test_a_program_outlasts_a_redis_that_is_away_for_longer_than_its_lease(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: str, back: str
) -> None:
    """Also one whose place was taken in the second that Redis lost: the place is not given out again."""
    # It looks for work before it renews.
    for name, seconds in (("LEASE", 0.5), ("RENEW", 0.1), ("LOOK", 0.02)):
        monkeypatch.setattr(runner, f"{name}_SECONDS", seconds)
    script = f"echo >> {tmp_path}/starts; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo > {tmp_path}/ended"
    harness = {"command": ["bash", "-c", script], "on_death": "fail"}
    with durable_redis() as redis:
        settings = RunnerSettings.model_validate({"redis_url": redis.url, "runner_process": "unsafe"})
        async with opened_pool(redis.url) as pool:
            (uid,) = await submit(pool.store, shared={"harness": harness}, asks={"harness": True})
            sessions = Sessions(pool.store)
            await sessions.want_place(await claim(pool.store, uid), reuse=True)
            redis.mark()
            running = asyncio.create_task(runner.Runner(settings, pool.store, ProcessRuntime(settings)).run())
            await asyncio.to_thread(eventually, (tmp_path / "starts").exists)
            redis.kill()
            if ends == "while Redis is away":
                (tmp_path / "go").touch()
                await asyncio.to_thread(eventually, (tmp_path / "ended").exists)
            await asyncio.sleep(1.5)
            redis.lose_tail() if back == "without its last second" else redis.start()
            await asyncio.sleep(0.3)
            (tmp_path / "go").touch()

            async def ended() -> SessionEnd | None:
                return (await sessions.state(uid)).end

            assert await until(ended, 20) == SessionEnd()
            running.cancel()
            await asyncio.wait([running])
    assert (tmp_path / "starts").read_text() == "\n"


async def test_a_door_that_stops_says_so_to_those_that_wait(redis_url: str, led_url: str) -> None:
    """No worker runs, so all calls wait; one is not even sent to its end, and has a blank behind its key."""
    with running_door(redis_url) as door:
        async with opened_pool(redis_url) as pool:
            session = await opened(pool, door, led_url)
            calls = [
                asyncio.create_task(posted(session, "/v1/messages", messages=[USER])),
                asyncio.create_task(posted(session, messages=[USER], stream=True)),
            ]

            async def waits() -> bool:
                return (await Sessions(pool.store).state(session.uid)).waiting == 2

            await until(waits, 10)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(door.url.rpartition(":")[2]))
            head = f"POST {session.url.removeprefix(door.url)}/v1/responses HTTP/1.1\r\nhost: x\r\n"
            writer.write(f"{head}authorization: Bearer {session.key} \r\ncontent-length: 9\r\n\r\n{{".encode())
            await writer.drain()
            await asyncio.sleep(0.2)
            door.process.send_signal(signal.SIGTERM)
            said = [await call for call in calls]
            half = await asyncio.wait_for(reader.read(), 10)
            writer.close()
    assert [(one.status_code, one.headers["retry-after"]) for one in said] == [(503, "1")] * 2
    assert [one.json()["error"]["type"] for one in said] == ["overloaded_error", "server_error"]
    assert all("this door stops; ask again" in one.text for one in said)
    assert half.startswith(b"HTTP/1.1 503 ")


async def test_a_door_stops_although_a_program_does_not_read_its_reply(redis_url: str, led_url: str) -> None:
    """It was told that the door stops, and the door waited for ever until it had read that."""
    with running_door(redis_url) as door, socket.socket() as program:
        async with opened_pool(redis_url) as pool:
            session = await opened(pool, door, led_url)
            # Its reply does not fit into the buffers of both ends.
            program.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            program.connect(("127.0.0.1", int(door.url.rpartition(":")[2])))
            body = json.dumps({"model": "m", "messages": [USER]}).encode()
            head = f"POST {session.url.removeprefix(door.url)}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            head += f"authorization: Bearer {session.key}\r\ncontent-length: {len(body)}\r\n\r\n"
            program.sendall(head.encode() + body)
            sessions = Sessions(pool.store)

            async def waits() -> bool:
                return (await sessions.state(session.uid)).waiting == 1

            await until(waits, 10)
            message = {"role": "assistant", "content": "x" * 8_000_000, "tool_calls": []}
            reply = {"message": message, "finish_reason": "stop", "prompt_tokens": 1, "sampled_tokens": 1}
            await sessions.answer(await claim(pool.store, session.uid), 1, reply)
            await asyncio.to_thread(program.recv, 1, socket.MSG_PEEK)
            door.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(eventually, lambda: door.process.poll() is not None)


async def test_a_session_that_waits_on_many_connections_takes_no_other_s(redis_url: str, led_url: str) -> None:
    """It repeats one call, which its client says, so that no limit of calls stops it."""
    with running_door(redis_url, ROLLOUTPOOL_DOOR_CONNECTIONS="40") as door:
        async with opened_pool(redis_url) as pool:
            hostile = await opened(pool, door, led_url, max_calls_at_once=4)
            other = await opened(pool, door, led_url)
            headers = {"authorization": f"Bearer {hostile.key}", "x-stainless-retry-count": "1"}
            body = {"model": "m", "messages": [USER]}
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

                async def call() -> int:
                    async with http.post(f"{hostile.url}/v1/chat/completions", json=body, headers=headers) as reply:
                        return reply.status

                # No worker runs, so every call that is taken waits.
                calls = [asyncio.ensure_future(call()) for _ in range(100)]
                mine = other.program(timeout=3)
                mine.say("do 0")
                with pytest.raises(httpx.ReadTimeout):
                    await mine.call()
                refused = [one.result() for one in calls if one.done()]
                for one in calls:
                    one.cancel()
                await asyncio.wait(calls)
            assert set(refused) == {429}
            assert len(refused) >= 60


async def test_requests_without_measure_are_refused(pool: Pool, door: DoorProcess, led_url: str) -> None:
    session = await opened(pool, door, led_url)
    many = await posted(session, messages=[USER] * 20_000)
    assert (many.status_code, many.json()["error"]["code"]) == (413, "request_too_large")
    nested: Any = {}
    for _ in range(200):
        nested = {"properties": {"a": nested}}
    deep = {"type": "function", "function": {"name": "f", "parameters": nested}}
    assert (await posted(session, messages=[USER], tools=[deep])).status_code == 400
    block = {"type": "tool_use", "id": "x", "name": "f", "input": nested}
    result = {"type": "tool_result", "tool_use_id": "x", "content": "ok"}
    history = [USER, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    assert (await posted(session, "/v1/messages", messages=history)).status_code == 400
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    history = [
        {"role": "user", "content": "do 0"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
    ]
    assert (await posted(session, messages=history)).status_code == 200
    result_ = await session.end()
    assert result_.failure is None


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "x" * 300, "parameters": {}},
        {"name": "f", "parameters": {"type": 5, "properties": [], "required": "a"}},
        {"name": "<|im_end|>", "description": "<tool_call>", "parameters": {"properties": {"a": None}}},
    ],
    ids=["long name", "odd schema", "control strings"],
)
async def test_odd_tools_end_in_a_reply_or_in_a_refusal(
    pool: Pool, door: DoorProcess, led_url: str, tool: dict[str, Any]
) -> None:
    session = await opened(pool, door, led_url)
    reply = await posted(session, messages=[USER], tools=[{"type": "function", "function": tool}])
    assert reply.status_code in (200, 400), reply.text
    assert (await session.end()).failure is None


@pytest.mark.parametrize("counts", [False, True])
async def test_a_session_that_ends_without_a_call_says_so(
    pool: Pool, door: DoorProcess, led_url: str, counts: bool
) -> None:
    """To have tokens counted is no call."""
    session = await opened(pool, door, led_url)
    if counts:
        assert (await posted(session, "/v1/messages/count_tokens", messages=[USER])).is_success
    result = await session.end()
    assert result.failure is not None
    assert (result.failure.category, result.samples) == ("harness_lost", [])
    assert "without a call" in result.failure.message


async def test_a_call_that_waits_when_the_tokens_are_used_up_is_told_so(
    redis_url: str, tokenizer: ChatTokenizer
) -> None:
    policy = LedEngine(tokenizer)
    async with opened_pool(redis_url) as pool, pool.reconciled(), vllm_server(tokenizer, "unused") as engine:
        engine.sampler, engine.context = policy.sample, 100_000
        with running_door(redis_url) as door, started_worker(redis_url, [ROOT]) as worker:
            await worker.announced(pool.store)
            shared = {
                "server_url": engine.url,
                "harness": {"external": True},
                "max_tokens_total": 5,
                "protocol": "vllm",
            }
            (uid,) = await pool.submit(shared=shared, asks=ASKS)
            found = await Sessions(pool.store).open(uid)
            assert found is not None
            session = OpenedSession(pool, door, uid, await Sessions(pool.store).key(found))
            programs = [session.program(system=f"You are {n}.") for n in range(3)]
            for program in programs:
                program.say("do 1")
            ends = await asyncio.gather(*[program.call() for program in programs], return_exceptions=True)
            result = await session.end()
    assert (result.status, result.finish_reason) == ("completed", "max_tokens")
    refused = [end for end in ends if not isinstance(end, tuple)]
    assert {isinstance(one, httpx.HTTPStatusError) and one.response.status_code for one in refused} <= {403}
    assert result.harness is not None
    assert sum(line.tokens for line in result.harness.lines) == result.response_tokens


async def test_a_deleted_batch_answers_its_waiting_calls(pool: Pool, door: DoorProcess) -> None:
    session = await opened(pool, door, "http://127.0.0.1:9")
    program = session.program()
    program.say("do 1")
    asked = asyncio.ensure_future(program.call())
    sessions = Sessions(pool.store)

    async def waits() -> bool:
        return (await sessions.state(session.uid)).waiting == 1

    await until(waits)
    started = time.monotonic()
    await pool.store.rollouts.cancel(session.uid)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await asked
    assert refused.value.response.status_code == 403
    assert time.monotonic() - started < 10
    assert await sessions.end(session.uid, SessionEnd(reward=1.0)) == "over"


async def test_an_end_in_the_moment_in_which_the_session_is_given_back_is_seen(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    """A verifier that takes as long as a worker waits for the next call."""
    sessions = [await opened(pool, door, led_url) for _ in range(10)]
    for session in sessions:
        await session.program().run("do 0")
    asked = time.monotonic()
    async with pool.reconciled():
        await asyncio.sleep(asked + 4.8 - time.monotonic())
        for session in sessions:
            await asyncio.sleep(0.03)
            assert await Sessions(pool.store).end(session.uid, SessionEnd(reward=1.0)) == "ok"
        for session in sessions:
            result = await pool.result(session.uid, 20)
            assert result.reward == 1.0
