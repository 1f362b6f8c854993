"""Reading results: pages as JSON and as NDJSON, long-poll, events, push; many small ones and few large ones.

    python -m benchmarks.results [--quick]

The results are written beforehand through the store, as a worker writes them, so that only reading is measured. The
client takes the bytes and looks at none of them. For comparison, the same run measures the store's own reading, without
HTTP.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from benchmarks.cpu import Usage
from benchmarks.finished import accept, end, present, sample_of
from benchmarks.local_pool import local_pool
from benchmarks.report import Plot, Row, emit, parser
from benchmarks.webhook import webhook

from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.store import SecretStore, Store
from rolloutpool_trainer import LocalPool

PAGE = 1000
REPEATS = 3
SMALL, LARGE = 800, 110_000
"""Sampled ids: about 18 kB and 2 MB of JSON."""
PUSHED = 2000
STORE: Final = "store, no HTTP"


class _Reader:
    """One client of one batch. Every way to read returns how many results and how many bytes it saw."""

    def __init__(self, url: str, batch_id: str) -> None:
        parts = urlsplit(url)
        self._http = HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._path = f"/v1/batches/{batch_id}"

    def pages(self, query: str, mark: bytes) -> tuple[int, int]:
        """Reads page by page; `mark` occurs once in each result."""
        cursor, complete, seen, size = "0", False, 0, 0
        while not complete:
            self._http.request("GET", f"{self._path}/results?cursor={cursor}&limit={PAGE}&{query}")
            page = self._http.getresponse()
            body = page.read()
            _check(page.status, body)
            cursor = page.headers["X-Next-Cursor"]
            complete = page.headers["X-Batch-Complete"] == "true"
            seen, size = seen + body.count(mark), size + len(body)
        return seen, size

    def events(self) -> tuple[int, int]:
        """Reads the stream of events to its end."""
        self._http.request("GET", f"{self._path}/events")
        stream = self._http.getresponse()
        body = stream.read()
        _check(stream.status, body)
        return body.count(b"event: result"), len(body)

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()


def _check(status: int, body: bytes) -> None:
    if status != 200:
        raise AssertionError(f"{status}: {body[:500]!r}")


def measure(pool: LocalPool, count: int, sampled: int, *, repeats: int) -> list[Row]:
    """Returns one row per way. The pool has no workers."""
    batch_id = asyncio.run(_write(pool, count, sampled))
    mark = b'"result":{'

    def fresh(read: Callable[[_Reader], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
        def once() -> tuple[int, int]:
            with closing(_Reader(pool.url, batch_id)) as reader:
                return read(reader)

        return once

    ways: dict[str, Callable[[], tuple[int, int]]] = {
        "poll, JSON": fresh(lambda reader: reader.pages("format=json", mark)),
        "poll, NDJSON": fresh(lambda reader: reader.pages("format=ndjson", mark)),
        "long-poll, NDJSON": fresh(lambda reader: reader.pages("format=ndjson&wait=20", mark)),
        "events (ids only)": fresh(lambda reader: reader.events()),
        STORE: lambda: asyncio.run(_from_store(pool, batch_id)),
    }
    times: dict[str, list[tuple[float, int, dict[str, float]]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, read in ways.items():
            before, start = Usage(), time.perf_counter()
            seen, size = read()
            seconds = time.perf_counter() - start
            if seen != count:
                raise AssertionError(f"{way}: {seen} of {count} results")
            times[way].append((seconds, size, Usage().since(before)))
    direct = [seconds for seconds, _, _ in times[STORE]]
    return [_row(way, count, times[way], direct) for way in ways]


def _row(way: str, count: int, times: list[tuple[float, int, dict[str, float]]], direct: list[float]) -> Row:
    seconds = [one[0] for one in times]
    over = [own / other for own, other in zip(seconds, direct, strict=True)]
    return {
        "way": way,
        "results": count,
        "kB each": times[0][1] / count / 1000,
        "s": median(seconds),
        "s ±": (max(seconds) - min(seconds)) / 2,
        "results/s": count / median(seconds),
        "API CPU, µs each": median(one[2].get("api", 0.0) for one in times) / count * 1e6,
        "over the store's": None if way == STORE else median(over),
        "over the store's ±": None if way == STORE else (max(over) - min(over)) / 2,
    }


def _store(pool: LocalPool) -> Store:
    return Store.open(pool.redis_url, secrets=SecretStore.load(pool.secrets_file))


async def _write(pool: LocalPool, count: int, sampled: int, asks: Mapping[str, object] | None = None) -> str:
    store = _store(pool)
    try:
        batch_id = await accept(store, count, asks=asks)
        async with present(store):
            await end(store, batch_id, count, sample_of(sampled))
        return batch_id
    finally:
        await store.close()


async def _from_store(pool: LocalPool, batch_id: str) -> tuple[int, int]:
    store, cursor, seen, size = _store(pool), "0", 0, 0
    try:
        while True:
            piece = await store.batches.results(batch_id, cursor, 100)
            seen, size, cursor = seen + len(piece.items), size + sum(len(data) for _, data in piece.items), piece[1]
            if piece.complete:
                return seen, size
    finally:
        await store.close()


def measure_push(pool: LocalPool, count: int, sampled: int) -> Row:
    """Measures from the answer to the first push to the last push. One worker is started, with nothing else to do."""
    with webhook() as hook:
        delivery = Delivery(callback_url=hook.url, secret="benchmark-secret")
        asyncio.run(_write(pool, count, sampled, {"webhooks": delivery}))
        worker = pool.add_worker()
        before, start = Usage(), time.perf_counter()
        hook.open()
        while len(hook.answered) < count:
            if worker.ended:
                raise RuntimeError(worker.failure())
            time.sleep(0.02)
        spent = Usage().since(before)
        seconds = hook.answered[-1][0] - start
    return {
        "way": "push, one worker",
        "results": count,
        "kB each": sum(size for _, size in hook.answered) / count / 1000,
        "s": seconds,
        "results/s": count / seconds,
        "worker CPU, µs each": spent.get("worker", 0.0) / count * 1e6,
    }


def main() -> None:
    """Measures all ways for both sizes and prints a table."""
    options = parser("results", __doc__).parse_args()
    scale = 20 if options.quick else 1
    rows: list[Row] = []
    with local_pool(workers=0) as pool:
        rows += measure(pool, 10_000 // scale, SMALL, repeats=REPEATS)
        rows += measure(pool, 100 // scale, LARGE, repeats=REPEATS)
        rows.append(measure_push(pool, PUSHED // scale, SMALL))
    emit(
        "results",
        rows,
        options,
        title="Reading results",
        measures=(
            "Seconds for all results of a batch that has ended, medians of paired repeats with half of their range: "
            f"by pages of {PAGE} over one connection, as events, and pushed by one worker to a webhook that answers at "
            "once. `over the store's` is beside this process reading them from the store itself, without HTTP, in the "
            "same repeat. The budget is 1 s for 10,000 of 18 kB."
        ),
        leaves_out=(
            "Writing them, waiting for them (see waiters), networks, TLS, and what a client does with them: parsing "
            "18 kB of JSON costs a client more than reading it. Events carry ids alone, so they are no way to read "
            "results without pages. Two megabytes are a single sample of 110,000 tokens."
        ),
        plots=(Plot(kind="bar", x="way", y=("results/s",), unit="results/s", series="results", log_y=True),),
    )


if __name__ == "__main__":
    main()
