"""Calls that are made together travel together, and keep their own answers and errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from rolloutpool_common.store.scripting import AT_ONCE, Scripts

SOURCES = {
    "add": "return redis.call('INCRBY', 'n', ARGV[1])",
    "echo": "return ARGV[1]",
    "fail": "return redis.error_reply('ERR as asked')",
}


@pytest.fixture
async def scripts(redis_url: str) -> AsyncIterator[Scripts]:
    client = Redis.from_url(redis_url)
    yield Scripts(client, SOURCES)
    await client.aclose()


async def test_each_gets_its_own_answer(scripts: Scripts, raw: Redis) -> None:
    before = (await raw.info("stats"))["total_reads_processed"]
    many = 2 * AT_ONCE + 1
    answers = await asyncio.gather(*(scripts.run("echo", (f"{n}",)) for n in range(many)))
    assert answers == [b"%d" % n for n in range(many)]
    # In a few pieces rather than one by one.
    assert (await raw.info("stats"))["total_reads_processed"] - before < many / 2


async def test_commands_travel_with_scripts(scripts: Scripts, raw: Redis) -> None:
    await scripts.run("add", ("1",))
    before = (await raw.info("stats"))["total_reads_processed"]
    calls = [scripts.run("add", ("1",)), scripts.command("GET", "n"), scripts.command("LPUSH", "n", "no list")]
    answers: list[Any] = await asyncio.gather(
        *calls, *(scripts.command("PING") for _ in range(97)), return_exceptions=True
    )
    assert answers[:2] == [2, b"2"]
    assert isinstance(answers[2], ResponseError)
    assert set(answers[3:]) == {b"PONG"}
    assert (await raw.info("stats"))["total_reads_processed"] - before < 20


async def test_commands_are_not_sent_again_with_scripts_that_redis_forgot(scripts: Scripts, raw: Redis) -> None:
    await raw.script_flush()
    answers = await asyncio.gather(scripts.command("INCR", "m"), scripts.run("echo", ("x",)))
    assert list(answers) == [1, b"x"]
    assert await scripts.command("GET", "m") == b"1"


async def test_one_error_is_one_callers(scripts: Scripts) -> None:
    calls = [scripts.run("add", ("1",)), scripts.run("fail", ()), scripts.run("add", ("2",))]
    answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert [answers[0], answers[2]] == [1, 3]
    assert isinstance(answers[1], ResponseError)
    assert "as asked" in str(answers[1])


async def test_what_redis_forgot_runs_once(scripts: Scripts, raw: Redis) -> None:
    await scripts.run("add", ("1",))
    await raw.script_flush()
    await scripts.run("echo", ("x",))
    answers = await asyncio.gather(*(scripts.run("add", ("1",)) for _ in range(5)), scripts.run("echo", ("y",)))
    assert answers == [2, 3, 4, 5, 6, b"y"]


async def test_who_gave_up_is_not_asked_for(scripts: Scripts, raw: Redis) -> None:
    first = asyncio.create_task(scripts.run("add", ("1",)))
    gone = asyncio.create_task(scripts.run("add", ("10",)))
    await asyncio.sleep(0)
    gone.cancel()
    assert await first == 1
    assert await scripts.run("add", ("0",)) == 1


async def test_a_connection_that_hangs_holds_up_nobody_else(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    client = Redis.from_url(redis_url)
    scripts = Scripts(client, SOURCES)
    send = scripts._send
    begun = asyncio.Event()

    async def slow(calls: Any) -> list[Any]:
        if not begun.is_set():
            begun.set()
            await release.wait()
        return await send(calls)

    monkeypatch.setattr(scripts, "_send", slow)
    first = asyncio.create_task(scripts.run("echo", ("late",)))
    await begun.wait()
    assert await scripts.run("echo", ("early",)) == b"early"
    assert not first.done()
    release.set()
    assert await first == b"late"
    await client.aclose()
