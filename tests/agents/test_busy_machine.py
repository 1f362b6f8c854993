"""Programs that go on the moment they hear, on a machine that is busy: no call overtakes the reply that it follows.

Three loops take the cores. A raw client calls again in the same step in which it has read its reply, so the next call
may reach its worker before the turn there has heard that the reply is kept.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import orjson
import pytest
from tests.support.harness import DoorProcess, LedPolicy, Program, sampled
from tests.support.open_sessions import opened
from tests.support.pool import Pool

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback

ROUNDS = 20
AT_ONCE = 2
"""With more of them each waits for the others, and nothing is overtaken."""
TURNS = 12


@pytest.fixture
def busy_cores() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def play(program: Program, task: str) -> None:
    """Does as `Program.run` does, over one connection and without a client library."""
    at = urlsplit(program.url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=2**24)
    program.say(task)
    calls = [("", "")]
    while calls:
        path, request = program.request()
        body = orjson.dumps(request)
        head = f"POST {at.path}{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {program.key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        assert b" 200 " in answer[0]
        length = next(int(line[15:]) for line in answer if line.startswith(b"content-length:"))
        _, calls = program.take([orjson.loads(await reader.readexactly(length))])
        program.answer(calls)
    writer.close()


@pytest.mark.timeout(600)
async def test_each_program_has_one_line_of_talk(
    agents_pool: Pool, agents_door: DoorProcess, tokenizer: ChatTokenizer, busy_cores: None
) -> None:
    led = LedPolicy(tokenizer)
    with serve_callback(callback_app(led, tokenizer=tokenizer), [0]) as served:
        for _ in range(ROUNDS):
            before = len(led.sampled)
            sessions = [await opened(agents_pool, agents_door, served.url) for _ in range(AT_ONCE)]
            await asyncio.gather(*[play(session.program(), f"do {TURNS}") for session in sessions])
            results = [await session.end() for session in sessions]
            assert [len(result.samples) for result in results] == [1] * AT_ONCE
            kept = [ids for result in results for ids in sampled(result)]
            assert sorted(kept) == sorted(led.sampled[before:])
