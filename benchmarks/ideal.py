"""The least that a rollout can cost: bare asyncio, the same calls, and nothing else.

There is no queue, no token and no record: a reply is read, its tool calls are computed, the next turn is asked. One
form uses an `httpx.AsyncClient` per rollout in flight, the other a bare connection. Both run in the process of the load
generator, because they need no process of their own.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import uvloop
from benchmarks.conversations import messages, rollout_id
from benchmarks.cpu import Usage
from benchmarks.load import Load, Measured, System
from benchmarks.lookup import passage
from benchmarks.wire import Client, connect, head

PATH = "/v1/chat/completions"
Post = Callable[[bytes], Awaitable[bytes]]


class Ideal:
    """Calls a trainer with nothing around it."""

    def __init__(self, system: System, trainer_port: int) -> None:
        """Prepares; `system` chooses the client."""
        self._open = {System.IDEAL_HTTPX: _httpx, System.IDEAL_RAW: _raw}[system]
        self._system = system
        self._port = trainer_port

    def measure(self, load: Load) -> Measured:
        """Measures one load. Each slot runs one rollout before the clock starts, so that its connection stands."""
        return uvloop.run(self._measure(load))

    async def _measure(self, load: Load) -> Measured:
        async with self._open(self._port, load.in_flight) as posts:
            await asyncio.gather(*(_rollout(post, load, serial) for serial, post in enumerate(posts)))
            serials = iter(range(load.rollouts))
            before, start = Usage(), time.perf_counter()
            await asyncio.gather(*(_slot(post, load, serials) for post in posts))
            seconds = time.perf_counter() - start
            return Measured(self._system, load, seconds, Usage().since(before))


async def _slot(post: Post, load: Load, serials: Iterator[int]) -> None:
    for serial in serials:
        await _rollout(post, load, serial)


async def _rollout(post: Post, load: Load, serial: int) -> None:
    history: list[dict[str, Any]] = messages(load, serial)
    name = rollout_id(load, serial)
    for turn in range(1, load.turns + 1):
        body = orjson.dumps({"model": "default", "messages": history, "rollout_id": name, "response_mask": None})
        message = orjson.loads(await post(body))["choices"][0]["message"]
        history.append(message)
        if turn < load.turns:
            (call,) = message["tool_calls"]
            given = orjson.loads(call["function"]["arguments"])
            content = passage(**given) if load.result_characters else str(given["a"] + given["b"])
            history.append({"role": "tool", "content": content, "tool_call_id": call["id"]})
    if message.get("tool_calls"):
        raise AssertionError(f"turn {load.turns} was not the last one")


@asynccontextmanager
async def _httpx(port: int, count: int) -> AsyncIterator[list[Post]]:
    context = ssl.create_default_context()
    clients = [httpx.AsyncClient(verify=context, trust_env=False, timeout=300.0) for _ in range(count)]
    url = f"http://127.0.0.1:{port}{PATH}"

    def post(client: httpx.AsyncClient) -> Post:
        async def ask(body: bytes) -> bytes:
            answer = await client.post(url, content=body, headers={"Content-Type": "application/json"})
            return answer.raise_for_status().content

        return ask

    yield [post(client) for client in clients]
    await asyncio.gather(*(client.aclose() for client in clients))


@asynccontextmanager
async def _raw(port: int, count: int) -> AsyncIterator[list[Post]]:
    connections = [await connect(port) for _ in range(count)]
    start = head(port, PATH)

    def post(connection: Client) -> Post:
        return lambda body: connection.post(start, body)

    yield [post(connection) for connection in connections]
    for connection in connections:
        connection.close()
