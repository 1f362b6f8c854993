"""Calls that are made together travel together, and keep their own answers and errors."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.scripting import Scripts
from rolloutpool_common.store.sender import AT_ONCE, WRITE_BYTES
from rolloutpool_common.store.store_call import StoreCall

SOURCES = {
    "add": "return redis.call('INCRBY', 'n', ARGV[1])",
    "echo": "return ARGV[1]",
    "fail": "return redis.error_reply('ERR as asked')",
}


@pytest.fixture
async def scripts(redis_url: str) -> AsyncIterator[Scripts]:
    opened = Scripts(Connection(redis_url)._dial, SOURCES)
    yield opened
    await opened.close()


async def test_each_gets_its_own_answer(scripts: Scripts, raw: Redis) -> None:
    before = (await raw.info("stats"))["total_reads_processed"]
    many = 2 * AT_ONCE + 1
    answers = await asyncio.gather(*(scripts.run("echo", (f"{n}",)) for n in range(many)))
    assert answers == [b"%d" % n for n in range(many)]
    # In a few pieces rather than one by one.
    assert (await raw.info("stats"))["total_reads_processed"] - before < many / 2


async def test_a_write_is_bounded(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    await scripts.run("echo", ("x",))
    lengths: list[int] = []
    line = scripts._small._line
    assert line is not None
    send = line.send

    def measured(calls: Sequence[StoreCall]) -> None:
        lengths.append(sum(len(call.data) for call in calls))
        send(calls)

    monkeypatch.setattr(line, "send", measured)
    text = "x" * 40_000
    assert await asyncio.gather(*(scripts.run("echo", (text,)) for _ in range(20))) == [text.encode()] * 20
    assert len(lengths) == 4
    assert max(lengths) <= WRITE_BYTES


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
    first, gone = scripts.run("add", ("1",)), scripts.run("add", ("10",))
    gone.cancel()
    assert await first == 1
    assert await scripts.run("add", ("0",)) == 1
