"""Reconciliation: finds what nobody works on any more and puts it back.

Only the holder of the leader's lock reconciles, and each of its actions is a script that changes nothing when the
world has moved on. No worker is declared dead within `DEAD_AFTER_SECONDS` + two beats of a Redis restart, because
none of them could beat while Redis was away.
"""

import asyncio
import logging
import uuid
from typing import NamedTuple

from rolloutpool_common.errors import PoisonRollout
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named, now_ms
from rolloutpool_common.store.batches import Batches
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.rollouts import Rollouts
from rolloutpool_common.store.schema import SCHEMA_VERSION, check_version
from rolloutpool_common.store.workers import BEAT_SECONDS, DEAD_AFTER_SECONDS, Workers

__all__ = ["MAX_CRASHES", "Reconciliation", "ReconciliationReport"]

_log = logging.getLogger(__name__)

LEASE_MS = 5000
REQUEUED_AT_ONCE = 64
OWN_END_MS = 10_000
"""How long past its deadline a running rollout is left to its worker."""
MAX_DEAD = 10_000
MAX_CRASHES = 4
"""Workers that may die while they have one rollout and it gets nowhere. After two it runs alone in a process
(`claim.lua`), so that a further death is none of its neighbours' doing; two of those, because machines die as well."""


class ReconciliationReport(NamedTuple):
    """What one round did."""

    leader: bool
    dead_workers: int = 0
    requeued: int = 0
    poisoned: int = 0
    cancelled: int = 0
    resumed: int = 0
    expired: int = 0
    deleted: int = 0


class Reconciliation:
    """One process's candidature for the lock, and the work that comes with it."""

    def __init__(self, connection: Connection, workers: Workers, rollouts: Rollouts, batches: Batches) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._workers = workers
        self._rollouts = rollouts
        self._batches = batches
        self._id = uuid.uuid4().hex

    async def run_once(self) -> ReconciliationReport:
        """One round, if this process leads."""
        if not await self._connection.script("lead", self._id, LEASE_MS):
            return ReconciliationReport(leader=False)
        dead = requeued = poisoned = 0
        redis = named(await self._connection.script("epoch", SCHEMA_VERSION))
        check_version(redis["schema"])
        if redis["uptime_s"] > DEAD_AFTER_SECONDS + 2 * BEAT_SECONDS:
            for worker_id in await self._workers.expired():
                back, out = await self._bury(worker_id)
                dead, requeued, poisoned = dead + 1, requeued + back, poisoned + out
        cancelled = sum([await self._batches.cancel(batch_id) for batch_id in await self._batches.cancelling()])
        cancelled += await self._batches.cancel_late() + await self._batches.end_precancelled()
        resumed, expired, deleted = await self._resume(), await self._expire(), await self._delete()
        return ReconciliationReport(True, dead, requeued, poisoned, cancelled, resumed, expired, deleted)

    async def resign(self) -> None:
        """Gives the lock up, so that another process need not wait for the lease."""
        with store_errors():
            if await self._redis.get(keys.LEADER) == self._id.encode():
                await self._redis.delete(keys.LEADER)

    async def _bury(self, worker_id: str) -> tuple[int, int]:
        uids = await self._workers.claims(worker_id)
        crashes: list[int] = []
        # Each waits for the disk, and together they wait once.
        for start in range(0, len(uids), REQUEUED_AT_ONCE):
            some = uids[start : start + REQUEUED_AT_ONCE]
            crashes += await asyncio.gather(*(self._take_back(uid, worker_id) for uid in some))
        await self._workers.deregister(worker_id)
        requeued, poisoned = sum(n > 0 for n in crashes), sum(n >= MAX_CRASHES for n in crashes)
        _log.warning("worker %s is dead: %d of its rollouts go on elsewhere", worker_id, requeued - poisoned)
        return requeued, poisoned

    async def _take_back(self, uid: str, worker_id: str) -> int:
        """Queues a dead worker's rollout again; returns how many it is suspected of, 0 where the worker had lost it."""
        split = keys.split_uid(uid)
        if split is None:
            return 0
        crashes = int(await self._connection.script("release", *split, "", worker_id, "crashes", 0, 0, ""))
        if crashes >= MAX_CRASHES:
            await self.note_dead(uid)
            poison = PoisonRollout(
                f"{crashes} workers died while they ran this rollout; look into the workers' logs before resubmitting"
            )
            await self._rollouts.settle(*split, RolloutStatus.FAILED, FinishReason.ERROR, poison.failure())
        return max(crashes, 0)

    async def note_dead(self, uid: str) -> None:
        """Puts a rollout on the list of those that killed their workers."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.lrem(keys.DEAD, 0, uid)
            pipe.lpush(keys.DEAD, uid)
            pipe.ltrim(keys.DEAD, 0, MAX_DEAD - 1)
            await pipe.execute()

    async def dead_letters(self, limit: int = 100) -> list[str]:
        """The uids of rollouts that killed their workers, newest first."""
        with store_errors():
            return [uid.decode() for uid in await self._redis.lrange(keys.DEAD, 0, limit - 1)]

    async def _resume(self) -> int:
        """Queues the delayed rollouts whose time has come."""
        with store_errors():
            now = await now_ms(self._redis)
            due = await self._redis.zrangebyscore(keys.DELAYED, "-inf", f"{now:.0f}", start=0, num=1000)
        resumed = 0
        for raw in due:
            split = keys.split_uid(raw.decode())
            resumed += 0 if split is None else await self._connection.script("due", *split)
        return resumed

    async def _expire(self) -> int:
        with store_errors():
            now = await now_ms(self._redis)
            due = await self._redis.zrangebyscore(
                keys.DEADLINES, "-inf", f"{now:.0f}", start=0, num=1000, withscores=True
            )
        expired = 0
        for raw, deadline_ms in due:
            split = keys.split_uid(raw.decode())
            # Who runs it ends it by its own clock, and delivers the turns that are proved.
            if now < deadline_ms + OWN_END_MS and await self._is_running(raw.decode()):
                continue
            answer = (
                "gone"
                if split is None
                else await self._rollouts.settle(*split, RolloutStatus.EXPIRED, FinishReason.DEADLINE, None)
            )
            expired += answer == "ok"
            if answer != "ok":
                with store_errors():
                    await self._redis.zrem(keys.DEADLINES, raw)
        return expired

    async def _is_running(self, uid: str) -> bool:
        with store_errors():
            return bool(await self._redis.hget(keys.rollout(uid), "status") == b"running")

    async def _delete(self) -> int:
        with store_errors():
            now = await now_ms(self._redis)
            due = await self._redis.zrangebyscore(keys.ENDED, "-inf", f"{now:.0f}", start=0, num=100)
        for batch_id in due:
            await self._batches.delete(batch_id.decode())
        return len(due)
