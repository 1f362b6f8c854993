"""What one request costs the API: calls of functions and CPU, from its bytes to those of its answer.

    python -m benchmarks.api_requests [--quick]

An API runs in this process, on its own loop, beside a pool whose worker runs the rollouts. A thread sends the requests,
`AT_ONCE` at a time. Only the thread of the API's loop is counted: uvicorn, all layers of the application, what it asks
Redis, the publishing of tickets. Calls are counted by `cProfile` in a run of its own, CPU is that of a run without it.
"""

import asyncio
import cProfile
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
import uvloop
from benchmarks.conversations import messages, rollout_id
from benchmarks.load import Load
from benchmarks.local_pool import local_pool
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser
from benchmarks.wire import Client, connect

from rolloutpool_api.__main__ import ApiServer, listen
from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.rendering import TINY

AT_ONCE = 16
LOAD = Load(turns=3, in_flight=AT_ONCE, latency_ms=0, rollouts=1)
BATCH = 100
PAGE = 100

Send = Callable[[Client], Awaitable[object]]
"""Makes one request."""
_serials = itertools.count()
"""Each rollout needs a name of its own."""


@dataclass(frozen=True)
class _Requests:
    """The requests of one API, as a client sends them."""

    port: int
    trainer: str

    def post(self, path: str, document: object) -> Send:
        """Returns what posts the same document each time."""
        body = orjson.dumps(document)
        return lambda client: client.post(self._head("POST", path), body)

    async def v1(self, client: Client) -> None:
        """Runs one rollout."""
        serial = next(_serials)
        document = {
            "rollout_id": rollout_id(LOAD, serial),
            "server_url": self.trainer,
            "messages": messages(LOAD, serial),
            "sampling_params": {},
            "tokenizer_name": TINY,
            "max_turns": LOAD.turns,
        }
        answer = await client.post(self._head("POST", "/rollout"), orjson.dumps(document))
        assert b'"finish_reason":"stop"' in answer, answer[:300]

    def batch(self, runs: bool) -> dict[str, object]:
        """Returns a batch; one that doesn't run waits for a trainer that is not there."""
        return {
            "rollouts": [
                {"messages": messages(LOAD, serial), "rollout_id": rollout_id(LOAD, serial)}
                for serial in itertools.islice(_serials, BATCH)
            ],
            "defaults": {"tokenizer_name": TINY, "max_turns": LOAD.turns, "max_tokens_total": 1_000_000},
            "trainer": {"server_urls": [self.trainer if runs else "http://127.0.0.1:9"]},
        }

    async def finished(self, client: Client) -> str:
        """Runs a batch; returns its id."""
        accepted = orjson.loads(await client.post(self._head("POST", "/v1/batches"), orjson.dumps(self.batch(True))))
        batch_id, cursor, complete = str(accepted["batch_id"]), "0", False
        while not complete:
            path = f"/v1/batches/{batch_id}/results?cursor={cursor}&limit={PAGE}&wait=25"
            page = orjson.loads(await client.post(self._head("GET", path), b""))
            cursor, complete = page["next_cursor"], page["complete"]
        return batch_id

    def page(self, batch_id: str) -> Send:
        """Returns what reads a page of a batch that has ended."""
        head = self._head("GET", f"/v1/batches/{batch_id}/results?cursor=0&limit={PAGE}&wait=25&format=ndjson")
        return lambda client: client.post(head, b"")

    def _head(self, method: str, path: str) -> bytes:
        lines = (f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Accept: */*", "User-Agent: benchmark")
        return "\r\n".join([*lines, "Content-Type: application/json", "Content-Length: "]).encode()


async def _send(port: int, send: Send, count: int) -> None:
    """Sends requests, `AT_ONCE` at a time; in the client's thread."""
    left = iter(range(count))

    async def slot() -> None:
        client = await connect(port)
        for _ in left:
            await send(client)
        client.close()

    await asyncio.gather(*(slot() for _ in range(AT_ONCE)))


async def _measure(port: int, name: str, send: Send, count: int) -> Row:
    """Returns the row of one kind of request; in the API's thread."""

    async def run() -> None:
        await asyncio.to_thread(asyncio.run, _send(port, send, count))

    await run()
    before = time.thread_time()
    await run()
    spent = time.thread_time() - before
    profile = cProfile.Profile()
    profile.enable()
    await run()
    profile.disable()
    calls = {True: 0, False: 0}
    for entry in profile.getstats():
        calls[isinstance(entry.code, str)] += entry.callcount
    return {
        "request": name,
        "calls of Python": round(calls[False] / count),
        "calls of C": round(calls[True] / count),
        "CPU, µs": spent / count * 1e6,
        "requests": count,
    }


async def _rows(redis_url: str, trainer: str, count: int) -> list[Row]:
    settings = ApiSettings.model_validate({"redis_url": redis_url, "rollout_server_port": 0, "log_level": "warning"})
    settings.start_logging()
    listener = listen(settings)
    port = listener.getsockname()[1]
    server = ApiServer(create_app(settings))
    serving_api = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    requests = _Requests(port, trainer)
    batch_id: str = await asyncio.to_thread(asyncio.run, _first(port, requests))
    batches = requests.post("/v1/batches", requests.batch(False))
    try:
        return [
            await _measure(port, "POST /rollout, 3 turns", requests.v1, count),
            await _measure(
                port,
                f"POST /v1/batches, {BATCH} rollouts",
                batches,
                count // 10,
            ),
            await _measure(port, f"GET results, a page of {PAGE}", requests.page(batch_id), count),
        ]
    finally:
        server.should_exit = True
        await serving_api


async def _first(port: int, requests: _Requests) -> str:
    return await requests.finished(await connect(port))


def main() -> None:
    """Measures the three requests that each rollout or page of results takes."""
    options = parser("api_requests", __doc__).parse_args()
    with serving("benchmarks.stub_trainer") as trainer, local_pool(workers=1) as pool:
        rows = uvloop.run(_rows(pool.redis_url, f"http://127.0.0.1:{trainer}", 100 if options.quick else 1000))
    emit(
        "api_requests",
        rows,
        options,
        title="What a request costs the API",
        measures="Calls of functions and CPU of the API's event loop per request, with 16 under way.",
        leaves_out="The reconciler's thread, TLS, the worker, Redis and the client.",
    )


if __name__ == "__main__":
    main()
