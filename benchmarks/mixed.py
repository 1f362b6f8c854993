"""How long rollouts wait that one of twenty workers can run, and what they cost the others: pairs in one run.

    python -m benchmarks.mixed [--quick] [--rounds 3]

Scripts, broker and messages are the real ones, on a Redis of its own. The workers are light: each takes messages from
its queues as Celery does, claims, holds a slot for half a second, and writes a result. All of them have more to do than
they can. In each pair the same rollouts run twice: once alone, and once while every half second a rollout comes that
names an environment which one worker has.
"""

import asyncio
import base64
import itertools
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import orjson
import redis
import redis.asyncio
from benchmarks.report import Row, emit, parser
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.batches import beat
from tests.support.ports import free_port

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import digest_of, offer_names, spell
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.queue.celery_app import KEY_PREFIX, queue_name
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Claim, NewBatch, NewRollout, Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.keys import uid_of
from rolloutpool_common.store.schema import SCHEMA_VERSION
from rolloutpool_trainer.local.redis_server import find_server

WORKERS = 20
SLOTS = 4
RUN_SECONDS = 0.5
"""How long a rollout holds its slot."""
EVERY_SECONDS = 0.5
"""Between two rollouts that name the environment; the worker that has it could run sixteen in this time."""
REFILL_SECONDS = 0.05
"""As a worker process waits between a claim and its look at the outboxes."""
MAZE = "maze"


@dataclass
class Measured:
    """What one pass has shown."""

    plain: int
    seconds: float = 0.0
    """Until all plain rollouts had ended."""
    waits: list[float] = field(default_factory=list)
    """Seconds from the submit of a rollout that names the environment to its claim."""
    refused: int = 0
    """Tickets that a worker gave back because it was not suited."""
    unfinished: int = 0


class _Pool:
    """Twenty workers, the first of which has the environment, and what publishes for them."""

    def __init__(self, url: str, plain: int) -> None:
        self.store = Store.open(url, max_connections=64)
        self._publisher = Publisher(self.store, url)
        self._broker = redis.asyncio.Redis.from_url(url, max_connections=2 * WORKERS)
        self._refill = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = plain
        self.done = asyncio.Event()
        self.submitted: dict[str, float] = {}
        """When each rollout came that names the environment."""
        self.measured = Measured(plain)

    async def submit(self, count: int, **shared: Any) -> list[str]:
        fields = {
            **{"sampling_params": {}, "tokenizer_name": "none", "server_url": "http://127.0.0.1:9"},
            **{"messages": [{"role": "user", "content": "5 + 3"}], **shared},
        }
        batch = NewBatch(
            batch_id=f"b{time.monotonic_ns():x}",
            owner="benchmark",
            run="scarce" if shared else "plain",
            shared=orjson.dumps(fields),
            rollouts=[NewRollout(rollout_id=None, overrides=b"{}")] * count,
        )
        await self.store.batches.submit(batch)
        self._refill.set()
        return [uid_of(batch.batch_id, index) for index in range(count)]

    async def start(self) -> None:
        for n in range(WORKERS):
            has = [MAZE] if n == 0 else []
            about: dict[str, Any] = {"tools": [], "agents": ["tool_calls"], "termination_strategies": []}
            said = Announcement(host="h", pid=n, slots=SLOTS, environments=has, **about)
            await self.store.workers.announce(f"w{n}", said)
            offer = offer_names(**about, environments=has, reads=SCHEMA_VERSION)
            self._begin(self._work(f"w{n}", digest_of(spell(offer))))
        self._begin(self._publish())
        self._begin(self._follow())

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, worker_id: str, offer: str) -> None:
        names = [queue_name(priority, of) for of in dict.fromkeys(("", offer)) for priority in Priority]
        slots = asyncio.Semaphore(SLOTS)
        for turn in itertools.count():
            await slots.acquire()
            found = None
            while found is None:
                first = turn % len(names)
                order = [KEY_PREFIX + name for name in (*names[first:], *names[:first])]
                found = await self._broker.brpop(order, timeout=1)
            ((refs,), *_) = orjson.loads(base64.b64decode(orjson.loads(found[1])["body"]))
            for batch_id, index in refs:
                self._begin(self._run(uid_of(batch_id, index), worker_id, slots))

    async def _run(self, uid: str, worker_id: str, slots: asyncio.Semaphore) -> None:
        try:
            claim = await self.store.rollouts.claim(uid, worker_id)
            if not isinstance(claim, Claim):
                self.measured.refused += 1
                return
            if uid in self.submitted:
                self.measured.waits.append(time.monotonic() - self.submitted.pop(uid))
            if claim.more_waiting:
                self._refill.set()
            await asyncio.sleep(RUN_SECONDS)
            await self.store.rollouts.finish(claim, _result(claim))
            self._open -= claim.notes.get("run", b"").endswith(b"/plain")
            if not self._open:
                self.done.set()
        finally:
            slots.release()

    async def _publish(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._refill.wait()
            await asyncio.sleep(REFILL_SECONDS)
            self._refill.clear()
            await self._publisher.pump()

    async def _follow(self) -> None:
        """Beats for all workers, and looks at their offers once a second, as the API does."""
        while True:
            for n in range(WORKERS):
                await beat(self.store, f"w{n}", running=0, tokenizers={})
            await self._publisher.follow_offers()
            self._refill.set()
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._publisher.close()
        await self._broker.aclose()
        await self.store.close()


def _result(claim: Claim) -> RolloutResult:
    return RolloutResult(
        uid=claim.uid,
        rollout_id=claim.spec.rollout_id,
        batch_id=claim.batch_id,
        index=claim.index,
        status=RolloutStatus.COMPLETED,
        finish_reason=FinishReason.STOP,
    )


async def measure(plain: int, *, scarce: bool) -> Measured:
    """Runs so many plain rollouts to their ends; with `scarce`, rollouts for one worker come meanwhile."""
    async with _empty_redis() as url:
        pool = _Pool(url, plain)
        try:
            await pool.start()
            start = time.monotonic()
            await pool.submit(plain)
            while not pool.done.is_set():
                if scarce:
                    (uid,) = await pool.submit(1, environment={"name": MAZE})
                    pool.submitted[uid] = time.monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_SECONDS):
                        await pool.done.wait()
            pool.measured.seconds = time.monotonic() - start
            # The last ones came a moment ago.
            for _ in range(100):
                if not pool.submitted:
                    break
                await asyncio.sleep(0.1)
            pool.measured.unfinished = len(pool.submitted)
            return pool.measured
        finally:
            await pool.close()


@asynccontextmanager
async def _empty_redis() -> AsyncIterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        server = subprocess.Popen(  # noqa: ASYNC220  nothing else runs here
            [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200)) as client:
                client.ping()
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
            server.wait()


def rows_of(pairs: list[tuple[Measured, Measured]]) -> list[Row]:
    """Makes a row of each pair (alone, beside others), and one of all of them."""
    waits = [wait for _, beside in pairs for wait in beside.waits]
    rows: list[Row] = [_row(str(number), [pair], pair[1].waits) for number, pair in enumerate(pairs, 1)]
    return [*rows, _row("all", pairs, waits)]


def _row(name: str, pairs: list[tuple[Measured, Measured]], waits: list[float]) -> Row:
    rates = [(alone.plain / alone.seconds, beside.plain / beside.seconds) for alone, beside in pairs]
    return {
        "pair": name,
        "others alone, a second": round(median(alone for alone, _ in rates), 1),
        "others beside, a second": round(median(beside for _, beside in rates), 1),
        "beside / alone": round(median(beside / alone for alone, beside in rates), 3),
        "suited": len(waits),
        "waited p50, s": round(median(waits), 2),
        "p95, s": round(quantiles(waits, n=20)[-1] if len(waits) > 1 else waits[0], 2),
        "never ran": sum(beside.unfinished for _, beside in pairs),
        "refused": sum(beside.refused for _, beside in pairs),
    }


def main() -> None:
    """Measures some pairs and prints a table."""
    options = parser("mixed", __doc__)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    plain, rounds = (200, 1) if chosen.quick else (2400, chosen.rounds)
    pairs = []
    for number in range(rounds):
        # Taking turns in who is first, so that a machine that becomes slower harms both alike.
        passes = {scarce: asyncio.run(measure(plain, scarce=scarce)) for scarce in (bool(number % 2), not number % 2)}
        pairs.append((passes[False], passes[True]))
    emit(
        "mixed",
        rows_of(pairs),
        chosen,
        title="One suited worker of twenty",
        measures=(
            f"{WORKERS} light workers of {SLOTS} slots with more than enough to do; a rollout holds a slot for "
            f"{RUN_SECONDS:g} s. Every {EVERY_SECONDS:g} s comes one that a single worker can run: the time from its "
            "submit to its claim, and the rate of the others over their rate without it."
        ),
        leaves_out="Celery's own part of a worker, and everything that a rollout does.",
    )


if __name__ == "__main__":
    main()
