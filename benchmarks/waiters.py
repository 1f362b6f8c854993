"""A thousand waiters on one API process: how late does the last one hear that its rollout has ended?

    python -m benchmarks.waiters [--quick] [--waiters 1000]

A third of them long-poll their batch's results, a third read their batch's events, and a third have posted a rollout of
protocol v1. Each has a batch of its own. This process ends the rollouts through the store, as a worker does: first a
hundred per second, then all at once. Meanwhile it asks `/livez` fifty times a second.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import orjson
import uvloop
from benchmarks.finished import AT_ONCE, accept, claim, finish, present, sample_of
from benchmarks.local_pool import local_pool
from benchmarks.report import Plot, Row, emit, parser, spread

from rolloutpool_common.rendering import TINY
from rolloutpool_common.security.api_keys import GUEST
from rolloutpool_common.store import Claim, Store
from rolloutpool_trainer import LocalPool

KINDS: Final = ("long-poll", "events", "v1")
PER_SECOND = 100
PING_SECONDS = 0.02
SAMPLED = 800
PATIENCE_SECONDS = 60
"""The longest that a long-poll may wait."""


class _Waiter(asyncio.Protocol):
    """A client that sends one request and notes when `mark` comes back."""

    def __init__(self, request: bytes, mark: bytes) -> None:
        self._request, self._mark = request, mark
        self._seen = b""
        self._transport: asyncio.Transport
        self.heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """When, on the clock of `time.perf_counter`."""
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.heard.done():
            return
        self._seen += data
        if self._mark in self._seen:
            self.heard.set_result(now)
        elif not self._seen.startswith(b"HTTP/1.1 200"):
            self.heard.set_exception(AssertionError(f"no waiter: {self._seen[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()
        if not self.heard.done():
            self.heard.set_exception(error or ConnectionError(f"sent home after {self._seen[:300]!r}"))

    async def close(self) -> None:
        self._transport.close()
        await self._lost.wait()


@dataclass(frozen=True)
class _Waiting:
    kind: str
    claimed: Claim
    waiter: _Waiter


class _Api:
    """One API process under measurement."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def wait(self, store: Store, serial: int) -> _Waiting:
        """Adds a waiter; the kinds take turns."""
        kind = KINDS[serial % len(KINDS)]
        if kind == "v1":
            name = f"waiter-{time.time_ns()}-{serial}"
            waiter = await self._send(b"POST /rollout", _v1_body(name), b'"status"')
            while (uid := await store.rollouts.find(name, GUEST)) is None:  # noqa: ASYNC110  another process sets it
                await asyncio.sleep(0.01)
            return _Waiting(kind, await claim(store, uid.rpartition("-")[0]), waiter)
        batch_id = await accept(store, 1)
        path, mark = "events", b"event: result"
        if kind == "long-poll":
            path, mark = f"results?wait={PATIENCE_SECONDS}", b'"result":{'
        waiter = await self._send(f"GET /v1/batches/{batch_id}/{path}".encode(), b"", mark)
        return _Waiting(kind, await claim(store, batch_id), waiter)

    async def ping(self) -> float:
        """Returns the milliseconds until `/livez` answers."""
        start = time.perf_counter()
        waiter = await self._send(b"GET /livez", b"", b"\r\n\r\n")
        heard = await waiter.heard
        await waiter.close()
        return (heard - start) * 1000

    async def _send(self, line: bytes, body: bytes, mark: bytes) -> _Waiter:
        head = b"%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        request = head % (line, len(body)) + body
        _, waiter = await asyncio.get_running_loop().create_connection(
            lambda: _Waiter(request, mark), "127.0.0.1", self._port
        )
        return waiter


def _v1_body(name: str) -> bytes:
    return orjson.dumps(
        {
            "rollout_id": name,
            "server_url": "http://127.0.0.1:9",
            "messages": [{"role": "user", "content": "What is 1 + 1?"}],
            "sampling_params": {},
            "tokenizer_name": TINY,
        }
    )


async def _measure(pool: LocalPool, port: int, waiters: int, per_second: int | None) -> list[Row]:
    store, api, sample = Store.open(pool.redis_url), _Api(port), sample_of(SAMPLED)
    delays: dict[str, list[float]] = {kind: [] for kind in KINDS}
    pings: list[float] = []
    free = asyncio.Semaphore(AT_ONCE)
    over = asyncio.Event()

    async def keep_pinging() -> None:
        while not over.is_set():
            pings.append(await api.ping())
            await asyncio.sleep(PING_SECONDS)

    try:
        async with present(store):
            waiting = [await api.wait(store, serial) for serial in range(waiters)]
            pinging = asyncio.create_task(keep_pinging())
            begun = time.perf_counter()

            async def one(number: int, waits: _Waiting) -> None:
                if per_second:
                    await asyncio.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
                async with free:
                    start = time.perf_counter()
                    await finish(store, waits.claimed, sample)
                delays[waits.kind].append((await waits.waiter.heard - start) * 1000)
                await waits.waiter.close()

            await asyncio.gather(*(one(number, waits) for number, waits in enumerate(waiting)))
            over.set()
            await pinging
    finally:
        await store.close()
    pace = f"{per_second} a second" if per_second else "all at once"
    return [_row(pace, waiters, kind, times) for kind, times in (*delays.items(), ("ping", pings))]


def _row(pace: str, waiters: int, kind: str, times: Sequence[float]) -> Row:
    return {
        "rollouts end": pace,
        "waiters": waiters,
        "who": kind,
        **spread(times),
    }


def measure(pool: LocalPool, waiters: int, per_second: int) -> list[Row]:
    """Returns one row per kind of waiter and pace. The pool has no workers."""
    port = int(pool.url.rpartition(":")[2])
    return [row for pace in (per_second, None) for row in uvloop.run(_measure(pool, port, waiters, pace))]


def main() -> None:
    """Measures both paces and prints a table."""
    options = parser("waiters", __doc__)
    options.add_argument("--waiters", type=int, default=1000)
    chosen = options.parse_args()
    waiters = 60 if chosen.quick else chosen.waiters
    # Each of v1's waiters takes a slot of the API.
    with local_pool(workers=0, env={"MAX_CONCURRENT_ROLLOUTS": str(waiters)}) as pool:
        rows = measure(pool, waiters, PER_SECOND)
    emit(
        "waiters",
        rows,
        chosen,
        title="Waiting for results",
        measures=(
            "Milliseconds from the moment at which a worker begins to write a rollout's result to the moment at which "
            "its waiter has heard of it, over a third each of long-polls, event streams and posts of protocol v1, on "
            "one API process; and how long a ping of /livez takes meanwhile. The budget is 1,000 ms for the latest."
        ),
        leaves_out=(
            "The rollouts: they end by decree, each with a result of 18 kB. All at once means as fast as one process "
            "writes them, 32 at a time. What this process itself is late by is in the figures."
        ),
        plots=(
            Plot(
                kind="bar",
                x="who",
                y=("ms, largest",),
                unit="ms, the latest",
                series="rollouts end",
                log_y=True,
                budget=1000,
            ),
        ),
    )


if __name__ == "__main__":
    main()
