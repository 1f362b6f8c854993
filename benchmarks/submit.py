"""Submitting a batch: the time from the POST to the 202, to the first model call and to its cancel; its size in Redis.

    python -m benchmarks.submit [--quick]

The 202 says that the batch is durable. For comparison, the same run writes the same bytes to the same Redis with one
command per 500 rollouts, which is the least that any durable queue has to do. The trainer takes calls and never
answers. Each batch is cancelled when its first call has come.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from statistics import median
from typing import Any

import orjson
import redis
from benchmarks.cpu import Usage
from benchmarks.local_pool import local_pool
from benchmarks.report import Plot, Row, emit, parser

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import KEY_PREFIX, queue_name
from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import LocalPool

SIZES = (100, 1_000, 10_000)
REPEATS = 3
PROMPT = 1_000
"""Characters of a rollout's own prompt."""
CHUNK = 500
SLOTS = 8
"""Few, so that most of a batch waits in outbox and broker while they are looked at."""
QUEUE = KEY_PREFIX + queue_name(Priority.DEFAULT)


class _SilentTrainer:
    """A trainer that takes calls and answers none."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._called = threading.Event()
        self._at = 0.0
        self._thread = threading.Thread(target=self._accept, name="trainer", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Prepares to wait for the next first call."""
        self._called.clear()

    def first_call(self) -> float:
        """Waits for the first call; returns when it came, on the clock of `time.perf_counter`."""
        if not self._called.wait(60):
            raise AssertionError("no rollout called the trainer within a minute")
        return self._at

    def close(self) -> None:
        """Stops to listen, and closes the connections."""
        # Closing alone would leave the thread waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with ExitStack() as kept:
            while True:
                try:
                    kept.enter_context(self._listener.accept()[0])
                except OSError:
                    return
                if not self._called.is_set():
                    self._at = time.perf_counter()
                    self._called.set()


@contextmanager
def silent_trainer() -> Iterator[_SilentTrainer]:
    trainer = _SilentTrainer()
    try:
        yield trainer
    finally:
        trainer.close()


def _items(count: int, rng: random.Random) -> list[dict[str, Any]]:
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(500)]
    prompts = (" ".join(rng.choices(words, k=PROMPT // 10)) for _ in range(count))
    return [{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts]


def measure(pool: LocalPool, sizes: Sequence[int], *, repeats: int) -> list[Row]:
    """Returns one row per size. The pool has one worker with few slots."""
    rng = random.Random(0)
    with silent_trainer() as trainer, redis.Redis.from_url(pool.redis_url) as store:
        taken: dict[int, list[Row]] = {size: [] for size in sizes}
        for _ in range(repeats):
            for size in sizes:
                taken[size].append(_once(pool, store, trainer, _items(size, rng)))
    return [_medians(size, taken[size]) for size in sizes]


def _once(pool: LocalPool, store: Any, trainer: _SilentTrainer, items: list[dict[str, Any]]) -> Row:
    count = len(items)
    body = orjson.dumps(
        {"rollouts": items, "defaults": {"tokenizer_name": TINY}, "trainer": {"server_urls": [trainer.url]}}
    )
    plain = _plain_write(store, items)
    trainer.reset()
    http = HTTPConnection("127.0.0.1", int(pool.url.rpartition(":")[2]), timeout=120)
    http.connect()
    before, start = Usage(), time.perf_counter()
    http.request("POST", "/v1/batches", body, {"Content-Type": "application/json"})
    answer = http.getresponse()
    accepted = answer.read()
    durable = time.perf_counter() - start
    if answer.status != 202:
        raise AssertionError(f"{answer.status}: {accepted[:500]!r}")
    spent = Usage().since(before)
    first = trainer.first_call() - start
    waiting = store.llen(QUEUE)
    message = store.memory_usage(QUEUE, samples=0) / waiting if waiting else None
    text = len(store.lindex(QUEUE, 0)) if waiting else None
    batch_id = orjson.loads(accepted)["batch_id"]
    grown = _bytes_of(store, batch_id)
    start = time.perf_counter()
    http.request("DELETE", f"/v1/batches/{batch_id}")
    ended = orjson.loads(http.getresponse().read())["cancelled"]
    cancelled = time.perf_counter() - start
    http.close()
    if ended != count:
        raise AssertionError(f"{ended} of {count} rollouts were cancelled")
    while store.llen(QUEUE):
        time.sleep(0.05)
    return {
        "202, ms": durable * 1000,
        "first call, ms": first * 1000,
        "cancel, ms": cancelled * 1000,
        "the same bytes to Redis, ms": plain * 1000,
        "202 / the same bytes": durable / plain,
        "API CPU, µs each": spent.get("api", 0.0) / count * 1e6,
        "Redis bytes each": grown / count,
        "ticket, bytes": text,
        "ticket in Redis, bytes": message,
    }


def _bytes_of(store: Any, batch_id: str) -> int:
    """Returns the bytes of all keys of a batch. What all of Redis has changes with other batches that go meanwhile."""
    names = list(store.scan_iter(match=f"*{batch_id}*", count=10_000))
    with store.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.memory_usage(name, samples=0)
        return sum(size or 0 for size in pipeline.execute())


def _plain_write(store: Any, items: list[dict[str, Any]]) -> float:
    """Returns the seconds that it takes to make the same items durable without looking at them."""
    texts = [orjson.dumps(item) for item in items]
    start = time.perf_counter()
    for begin in range(0, len(texts), CHUNK):
        store.rpush("benchmark:plain", *texts[begin : begin + CHUNK])
    seconds = time.perf_counter() - start
    store.delete("benchmark:plain")
    return seconds


def _medians(size: int, taken: Sequence[Row]) -> Row:
    row: Row = {"rollouts": size}
    for name in taken[0]:
        numbers = [number for one in taken if isinstance(number := one[name], int | float)]
        row[name] = median(numbers) if numbers else None
        if name in ("202, ms", "202 / the same bytes"):
            row[f"{name} ±"] = (max(numbers) - min(numbers)) / 2
    return row


def main() -> None:
    """Measures three sizes and prints a table."""
    options = parser("submit", __doc__).parse_args()
    sizes = SIZES[:2] if options.quick else SIZES
    with local_pool(workers=1, env={"ROLLOUTPOOL_WORKER_SLOTS": str(SLOTS)}) as pool:
        rows = measure(pool, sizes, repeats=REPEATS)
    emit(
        "submit",
        rows,
        options,
        title="Submitting a batch",
        measures=(
            f"Wall milliseconds from the POST of a batch whose rollouts have {PROMPT:,} characters of their own to its "
            "202, to the first call of the trainer, and from the DELETE to its answer; medians, with half of their "
            "range. Redis bytes are the growth of what it keeps per accepted rollout, prompt included; a ticket is the "
            "Celery message, which carries ids alone. The budget is 1,000 ms for 10,000, to submit as to cancel."
        ),
        leaves_out=(
            "Making the body, networks, TLS, several trainers at once. Redis' bytes are those of an accepted rollout: "
            "its journal and its result come later. The disk below build/ decides what durable costs."
        ),
        plots=(
            Plot(
                kind="line",
                x="rollouts",
                y=("202, ms", "first call, ms", "the same bytes to Redis, ms"),
                unit="ms",
                log_x=True,
                log_y=True,
                budget=1000,
            ),
        ),
    )


if __name__ == "__main__":
    main()
