"""What a call to a trainer costs the worker, by HTTP client: CPU per call with 100 under way.

    python -m benchmarks.http_calls [--quick]

The trainer is a process of its own that looks its answer up. Every row makes the same calls, of 1.5 kB with a reply
of 2 kB. The last row is what aiohttp costs without httpx' requests and replies.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import aiohttp
import httpx
import uvloop
from benchmarks.conversations import conversation
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport

AT_ONCE = 100
HEADERS = {"Content-Type": "application/json", "Idempotency-Key": "0123456789abcdef/1"}

Call = Callable[[int], Awaitable[int]]


async def _measure(call: Call, calls: int) -> tuple[float, float]:
    async def slot(number: int, count: int) -> None:
        for _ in range(count):
            assert await call(number) > 0

    await asyncio.gather(*(slot(number, 2) for number in range(AT_ONCE)))
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(slot(number, calls // AT_ONCE) for number in range(AT_ONCE)))
    return (time.process_time() - cpu) * 1000 / calls, calls / (time.perf_counter() - wall)


async def _rows(url: str, body: bytes, calls: int) -> list[Row]:
    context = ssl.create_default_context()
    shared = httpx.AsyncClient(verify=context, trust_env=False, limits=httpx.Limits(max_connections=None))
    each = [httpx.AsyncClient(verify=context, trust_env=False) for _ in range(AT_ONCE)]
    transport = AiohttpTransport(Resolver(Targets.loopback()), timeout=300)
    turns = Http1Client(Resolver(Targets.loopback()), timeout=300)
    client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=300)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())
    # The worker, too, parses a trainer's URL once per rollout.
    parsed = httpx.URL(url)

    async def by_shared(_: int) -> int:
        return len((await shared.post(url, content=body, headers=HEADERS)).content)

    async def by_each(number: int) -> int:
        return len((await each[number].post(url, content=body, headers=HEADERS)).content)

    async def by_client(_: int) -> int:
        async with client.stream("POST", parsed, content=body, headers=HEADERS) as response:
            return sum([len(part) async for part in response.aiter_bytes()])

    async def by_transport(_: int) -> int:
        request = httpx.Request("POST", parsed, content=body, headers=HEADERS)
        async with aclosing(await transport.handle_async_request(request)) as response:
            return sum([len(part) async for part in response.aiter_bytes()])

    async def by_turn_client(_: int) -> int:
        return len((await turns.ask("POST", url, HEADERS, body, most_bytes=10**8)).data)

    async def by_aiohttp(_: int) -> int:
        async with session.request("POST", url, data=body, headers=HEADERS, allow_redirects=False) as response:
            return sum([len(part) async for part in response.content.iter_any()])

    ways: dict[str, Call] = {
        "one httpx.AsyncClient for all": by_shared,
        "one httpx.AsyncClient per call under way": by_each,
        "httpx.AsyncClient over AiohttpTransport": by_client,
        "AiohttpTransport": by_transport,
        "Http1Client (the worker's for turns)": by_turn_client,
        "aiohttp.ClientSession": by_aiohttp,
    }
    rows: list[Row] = []
    for name, call in ways.items():
        cpu, rate = await _measure(call, calls)
        rows.append({"client": name, "ms CPU per call": cpu, "calls/s": rate})
    for opened in (shared, *each, client):
        await opened.aclose()
    await turns.aclose()
    await session.close()
    return rows


def main() -> None:
    """Prints a table."""
    options = parser("http_calls", __doc__).parse_args()
    body = b'{"rollout_id":"2.0.0.0.silent.x","messages":"' + b"x" * 1500 + b'"}'
    assert conversation(2, 0)
    with serving("benchmarks.stub_trainer") as port:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        rows = uvloop.run(_rows(url, body, 400 if options.quick else 5000))
    emit(
        "http_calls",
        rows,
        options,
        title="A call to a trainer",
        measures="CPU of the calling process per call, and calls per second, with 100 under way on one event loop.",
        leaves_out="Work on the reply, TLS, and latency: the trainer answers at once, from the same machine.",
    )


if __name__ == "__main__":
    main()
