"""Strays: accepted rollouts that are in no place, so that nobody would ever run or end them.

Each open rollout has exactly one owner of its next step. Without one it would be accepted and never end; with two it
would be sampled twice. This is the table of both rules; the store's state machine checks it after every step.

| place | it is there when | its next step is done by |
|---|---|---|
| `running` | a listed worker holds its claim | that worker; if it dies, the reconciler |
| `suspects` | it may have killed its workers | the next isolated worker (`trials.py`) |
| `delayed` | it may run again at a time to come | the reconciler (`requeue.lua`) |
| `published` | its ticket is in the broker | the worker that gets it; if it was lost, `Outbox.lost` |
| `outbox` | one of its batch's outboxes has it, and batch and run stand in line | who reserves next (`reserve.lua`) |
| `held` | its conversation is complete, and its group's is not | the last of its group; or the reconciler, later |
| `cancelling` | its batch is being cancelled | who cancels; if that process dies, the reconciler |
| `overdue` | its deadline has passed | the reconciler |
| `precancelled` | it was cancelled before it was submitted | who submits it; if that process dies, the reconciler |

What may stand together:

1. Of `running`, `suspects`, `delayed`, `published` and `held` at most one.
2. `outbox` may stand beside each of them. It is then a second entry, from a ticket that was published twice, and is
   dropped when its turn comes (`reserve.lua`): who has the rollout puts it back if need be.
3. The last three end a rollout wherever it is, so they may stand beside all others, and alone.

A rollout that is graded is `running` or waits like any other. The leader of a group waits like any other as well, and
is not `held`.

There should be no strays. Where two mechanisms meet that are each right alone there may be one all the same: it is
found, put back, counted (`rolloutpool_strays_total`), and alerted about.

1. Every `AUDIT_SECONDS` the reconciler counts, batch by batch, what is open, and what stands in all places. It reads
   the places in the order in which rollouts pass through them, and then how many are open: what moves on meanwhile is
   counted twice or has ended, but is not missed. Only what goes back meanwhile is.
2. A batch of which some are missing on two looks is scanned. In a graded batch a rollout may be counted in two places,
   so one in which nothing has moved between two looks is scanned as well.
3. The scan is one script per `CHUNK` rollouts (`strays.lua`). It reads all places in one step, so its word is final.

Example: a batch of 600, of which 400 have ended, 50 run, 100 stand in the outbox, and 49 are published. One is missing.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import digest_of
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

_log = logging.getLogger(__name__)

AUDIT_SECONDS = 5.0
"""Between two looks, and at least between the two that a scan takes."""
BATCHES = 1000
"""Batches that one look counts; the others come in the next ones."""
CHUNK = 500
"""Rollouts per script: at most some milliseconds, in which Redis answers nobody else."""
TOLD = 20
"""Strays of one scan that the log names one by one."""


class Stray(NamedTuple):
    """One rollout that was in no place."""

    batch_id: str
    rollout: int
    """Its index; -1 stands for the batch, whose outbox stood in no line."""
    status: str
    attempt: int


class _Line(NamedTuple):
    """Says where a batch stands in line while its outbox of a lane has something."""

    batch_id: str
    lane: str
    run: str


class _Count(NamedTuple):
    """Holds what one look has counted of a batch."""

    total: int
    open: int
    placed: int
    grading: int

    @property
    def doubtful(self) -> bool:
        return self.open > 0 and (self.placed < self.open or self.grading > 0)


class Strays:
    """The audit of one store, by the process that reconciles."""

    def __init__(self, connection: Connection, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares without connecting; tests pass their own `clock` of seconds."""
        self._connection = connection
        self._redis = connection.redis
        self._clock = clock
        self._looked = -AUDIT_SECONDS
        self._cursor = 0
        self._doubts: dict[str, _Count] = {}
        """Batches of which some were missing at the look before."""

    async def look(self) -> list[Stray]:
        """Looks if it is time; returns what was astray and has been put back."""
        if self._clock() - self._looked < AUDIT_SECONDS:
            return []
        self._looked = self._clock()
        with store_errors():
            self._cursor, some = await self._redis.sscan(keys.OPEN_BATCHES, cursor=self._cursor, count=BATCHES)
        counts = await self._count(sorted({raw.decode() for raw in some} | self._doubts.keys()))
        before, self._doubts = self._doubts, {b: count for b, count in counts.items() if count.doubtful}
        found: list[Stray] = []
        for batch_id, count in self._doubts.items():
            last = before.get(batch_id)
            if last is not None and (count.placed < count.open or count == last):
                found += await self.scan(batch_id, count.total)
        return found

    async def scan(self, batch_id: str, total: int) -> list[Stray]:
        """Puts back what is astray of a batch, and says so in the log."""
        found: list[Stray] = []
        for first in range(0, total, CHUNK):
            for index, status, attempt in await self._connection.script("strays", batch_id, first, first + CHUNK - 1):
                found.append(Stray(batch_id, index, status.decode(), attempt))
        for stray in found[:TOLD]:
            uid = keys.uid_of(batch_id, stray.rollout) if stray.rollout >= 0 else f"batch {batch_id}"
            _log.error(
                "%s was open and nowhere (%s, attempt %d), and is put back: report this, it is a fault of the pool",
                *(uid, stray.status, stray.attempt),
            )
        if len(found) > TOLD:
            _log.error("batch %s: %d more were open and nowhere, and are put back", batch_id, len(found) - TOLD)
        return found

    async def _count(self, batch_ids: Sequence[str]) -> dict[str, _Count]:
        """Counts each batch; leaves out those that have ended."""
        if not batch_ids:
            return {}
        lines = await self._lines(batch_ids)
        queues = [*(keys.published(priority) for priority in Priority), keys.DELAYED, keys.SUSPECTS]
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            for line in lines:
                pipe.llen(keys.outbox(line.batch_id, line.lane))
            for queue in queues:
                pipe.zrange(queue, 0, -1)
            pipe.smembers(keys.PRECANCELLED)
            for batch_id in batch_ids:
                pipe.hmget(keys.batch(batch_id), "running", "grading", "total", "ended")
            answers = await pipe.execute()
        outboxes = {line: n for line, n in zip(lines, answers, strict=False) if n}
        states = answers[-len(batch_ids) :]
        placed = Counter(_batches_of(uid for uids in answers[len(lines) : -len(batch_ids)] for uid in uids))
        for line in await self._standing(list(outboxes)):
            placed[line.batch_id] += outboxes[line]
        counts: dict[str, _Count] = {}
        for batch_id, (running, grading, total, ended) in zip(batch_ids, states, strict=True):
            if total is None or int(ended or 0) >= int(total):
                # It was deleted, or Redis has lost the removal with its last second.
                await self._forget(batch_id)
                continue
            claimed, graded = int(running or 0), int(grading or 0)
            still = int(total) - int(ended or 0)
            counts[batch_id] = _Count(int(total), still, placed[batch_id] + claimed + graded, graded)
        return counts

    async def _lines(self, batch_ids: Sequence[str]) -> list[_Line]:
        """Lists the lines in which something of these batches may wait: those of their classes, and of lanes."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            for batch_id in batch_ids:
                pipe.hmget(keys.batch(batch_id), "run", "priority")
                pipe.smembers(keys.batch(batch_id, "lanes"))
            answers = await pipe.execute()
        return [
            _Line(batch_id, lane.decode(), run.decode())
            for batch_id, (run, priority), lanes in zip(batch_ids, answers[::2], answers[1::2], strict=True)
            if run is not None
            for lane in (priority, *lanes)
        ]

    async def _standing(self, lines: Sequence[_Line]) -> list[_Line]:
        """Returns the lines in which the batch stands in its run's list, and the run in that of a known lane."""
        lanes = sorted({line.lane for line in lines})
        runs = sorted({(line.lane, line.run) for line in lines})
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zrange(keys.PAUSED, 0, -1)
            for priority in Priority:
                pipe.lrange(keys.lanes(priority), 0, -1)
            for lane in lanes:
                pipe.lrange(keys.runs(lane), 0, -1)
            for lane, run in runs:
                pipe.lrange(keys.run(lane, run), 0, -1)
            paused, *found = await pipe.execute()
        known = {str(priority) for priority in Priority} | {
            f"{priority}~{digest_of(needs.decode())}"
            for priority, listed in zip(Priority, found, strict=False)
            for needs in listed
        }
        of_lane = dict(zip(lanes, ({*paused, *names} for names in found[len(Priority) :]), strict=False))
        of_run = dict(zip(runs, map(set, found[len(Priority) + len(lanes) :]), strict=True))
        return [
            line
            for line in lines
            if line.lane in known
            and line.run.encode() in of_lane[line.lane]
            and line.batch_id.encode() in of_run[line.lane, line.run]
        ]

    async def _forget(self, batch_id: str) -> None:
        with store_errors():
            await self._redis.srem(keys.OPEN_BATCHES, batch_id)


def _batches_of(uids: Iterable[bytes]) -> Iterable[str]:
    return (uid.decode().rpartition("-")[0] for uid in uids)
