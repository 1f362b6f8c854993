"""Reconciliation: what happens when a worker dies, a deadline passes, or a process stops in the middle of something.

One API process at a time reconciles; the others stand by. Each of its actions is a script that looks first and
changes nothing where the situation has changed, so that two leaders by mistake do no harm.

What happens when a worker dies:

1. The reconciler finds the evidence (`liveness.py`, `verdicts.py`) and marks the worker (`condemn.lua`). A marked
   worker may claim nothing.
2. Each rollout that it had is queued again (`release.lua`): its token is removed, so that the worker could no longer
   write if it lived; its journal stays, so that the next worker continues it; its crash counter rises if a rollout may
   have caused the death.
3. The worker is removed from the list (`deregister.lua`). If it lives, its next beat tells it to stop what it had, and
   it announces itself again.
4. After two such deaths without progress the rollout is a suspect, and runs only in an isolated worker (`trials.py`).
   Progress, one more journal record, resets the counter.
5. After two deaths more in which it ran alone (`MAX_CRASHES`) the rollout fails as poison (`poison.py`), and its uid is
   put on the dead-letter list.

About once a second, and beside the looks at workers, it asks which of its lists have something due (`lead.lua`), and
does only that: it finishes cancellations whose process has died, queues delayed rollouts that are due, ends rollouts
whose deadline or whose grader's deadline has passed, ends what nobody reads (`leases.py`), has capabilities end what is
overdue (`StoredCapability.tidy`), and deletes batches whose retention is over.
Every five seconds it also counts whether each open rollout is somewhere (`strays.py`).
"""

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import NamedTuple

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.errors import PoisonRollout
from rolloutpool_common.outcomes import Failure, FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause
from rolloutpool_common.protocol.journal import JournalUnreadable
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named, now_ms
from rolloutpool_common.store.batches import Batches
from rolloutpool_common.store.cancellation import cancel_batch
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.leases import Leases
from rolloutpool_common.store.poison import explain_poison
from rolloutpool_common.store.rollouts import Rollouts
from rolloutpool_common.store.schema import OLDEST_READ, SCHEMA_VERSION, check_version
from rolloutpool_common.store.strays import Strays
from rolloutpool_common.store.workers import Workers

_log = logging.getLogger(__name__)

LEASE_MS = 3000
"""How long the leader's lock lasts without renewal. It is renewed once a second at least."""
REQUEUED_AT_ONCE = 64
"""Scripts on their way at the same time; more would hold up the other calls of this process."""
OWN_END_MS = 10_000
"""Milliseconds past its deadline for which a running rollout is left to its worker. The worker ends it by its own
clock, and delivers the turns that are proved."""
MAX_DEAD = 10_000
"""Length of the dead-letter list."""
MAX_CRASHES = 4
"""Workers that may die while they have one rollout and it makes no progress. The third and fourth are isolated workers
that ran nothing else, so no other rollout can have caused their deaths; two of them, because machines fail as well.
Deaths of isolated workers that ran several suspects are not counted."""


class ReconciliationReport(NamedTuple):
    """Holds what one round did; all but the first field count."""

    leader: bool
    """Whether this process leads; if not, it did nothing."""
    cancelled: int = 0
    resumed: int = 0
    """Delayed rollouts that were due and are queued."""
    expired: int = 0
    leases: int = 0
    """Batches whose trainer stopped reading, and that were cancelled for it."""
    deleted: int = 0
    """Batches."""
    tidied: int = 0
    """What capabilities have ended because it was overdue."""
    strays: int = 0
    """Rollouts that were in no place, and are put back."""


class Removal(NamedTuple):
    """Holds what became of the rollouts of dead workers."""

    requeued: int = 0
    """Rollouts that they had, the poisoned ones included."""
    poisoned: int = 0


class Reconciliation:
    """One process's part in reconciling: it takes the lock when it is free, and then does the work."""

    def __init__(self, connection: Connection, workers: Workers, rollouts: Rollouts, batches: Batches) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._workers = workers
        self._rollouts = rollouts
        self._batches = batches
        self._leases = Leases(connection)
        self._unbroken = False
        """Whether the round before was this process's, and did not fail."""
        self.strays = Strays(connection)
        """The audit of what is open and nowhere."""
        self.process_id = uuid.uuid4().hex
        """Under which this process holds the leader's lock."""

    async def run_once(self, *, serving: bool = True) -> ReconciliationReport:
        """Does one round, if this process leads or the lock is free."""
        unbroken, self._unbroken = self._unbroken, False
        # Together they are one round trip. Each connection has run the second script already, unless Redis took no
        # writes at that moment.
        lead, redis = await asyncio.gather(
            self._connection.script("lead", self.process_id, LEASE_MS),
            self._connection.script("epoch", SCHEMA_VERSION, OLDEST_READ),
        )
        lead = named(lead)
        if not lead["leader"]:
            return ReconciliationReport(leader=False)
        check_version(named(redis)["schema"])
        chores = set(lead["chores"])
        cancelled = resumed = expired = deleted = tidied = 0
        if b"cancelling" in chores:
            for batch_id in await self._batches.interrupted_cancellations():
                cancelled += await self._batches.cancel(batch_id)
        if b"late" in chores:
            cancelled += await self._batches.cancel_late()
        if b"precancelled" in chores:
            cancelled += await self._batches.end_precancelled()
        if b"delayed" in chores:
            resumed = await self._resume()
        if b"deadlines" in chores:
            expired = await self._expire()
        leases = await self._end_leases(serving=serving and unbroken)
        if b"ended" in chores:
            deleted = await self._delete()
        for capability in CAPABILITIES:
            if capability.name.encode() in chores:
                with store_errors():
                    tidied += await capability.tidy(self._connection, self)
        strays = len(await self.strays.look())
        self._unbroken = True
        return ReconciliationReport(True, cancelled, resumed, expired, leases, deleted, tidied, strays)

    async def _end_leases(self, *, serving: bool) -> int:
        """Lets the served clock go on, and ends the batches that nobody reads; returns how many."""
        over = await self._leases.tick(self.process_id, serving=serving)
        for batch_id in over:
            _log.warning("batch %s is cancelled: its trainer has stopped reading it", batch_id)
            await self._batches.cancel(batch_id, CancelCause.LEASE)
        return len(over)

    async def resign(self) -> None:
        """Gives the lock up, so that another process leads at once and need not wait until it ends."""
        with store_errors():
            # Two steps: if the lock runs out between them, this removes the next leader's. Two leaders do no harm.
            if await self._redis.get(keys.LEADER) == self.process_id.encode():
                await self._redis.delete(keys.LEADER)

    async def remove_worker(self, worker_id: str, counter: str) -> Removal:
        """Puts back what a worker had that is declared dead, and forgets the worker."""
        uids = await self._workers.claims(worker_id)
        crashes: list[int] = []
        # Some at once: Redis then writes to its disk once for all of them.
        for start in range(0, len(uids), REQUEUED_AT_ONCE):
            some = uids[start : start + REQUEUED_AT_ONCE]
            crashes += await asyncio.gather(*(self.take_back(uid, worker_id, counter) for uid in some))
        # After its rollouts: the script refuses while any is left, and the next look begins again.
        await self._workers.deregister(worker_id)
        requeued, poisoned = sum(n >= 0 for n in crashes), sum(n >= MAX_CRASHES for n in crashes)
        _log.warning("worker %s is dead: %d of its rollouts go on elsewhere", worker_id, requeued - poisoned)
        return Removal(requeued, poisoned)

    async def take_back(self, uid: str, worker_id: str, counter: str = "crashes") -> int:
        """Queues a dead worker's rollout again."""
        split = keys.split_uid(uid)
        if split is None:
            return -1
        crashes = int(await self._connection.script("release", *split, "", worker_id, counter, 0, 0, ""))
        if crashes >= MAX_CRASHES:
            # Before the end: if this process dies in between, the list has one rollout too many, and never one too few.
            await self.note_dead(uid)
            poison = await self._explain(uid, crashes)
            await self._rollouts.settle(*split, RolloutEnd.failed(poison.failure()))
        return crashes

    async def _explain(self, uid: str, deaths: int) -> PoisonRollout:
        with store_errors():
            ends, stage = await self._redis.hmget(keys.rollout(uid), "ends", "stage")
        if stage is not None:
            return explain_poison(deaths, (ends or b"").decode().split(), None)
        # The result takes the journal's place, so it is read before.
        with suppress(JournalUnreadable):
            return explain_poison(deaths, (ends or b"").decode().split(), await self._rollouts.read_journal(uid))
        return explain_poison(deaths, (ends or b"").decode().split(), [])

    async def note_dead(self, uid: str) -> None:
        """Puts a rollout on the dead-letter list, at its front."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            # The same rollout may be noted twice.
            pipe.lrem(keys.DEAD, 0, uid)
            pipe.lpush(keys.DEAD, uid)
            pipe.ltrim(keys.DEAD, 0, MAX_DEAD - 1)
            await pipe.execute()

    async def dead_letters(self, limit: int = 100) -> list[str]:
        """Returns the uids on the dead-letter list, newest first."""
        with store_errors():
            return [uid.decode() for uid in await self._redis.lrange(keys.DEAD, 0, limit - 1)]

    async def _resume(self) -> int:
        """Queues the delayed rollouts that are due; returns how many."""
        with store_errors():
            now = await now_ms(self._redis)
            # At most 1000, so that a round stays short; the others are due in the next one.
            due = await self._redis.zrangebyscore(
                keys.DELAYED, "-inf", f"{now:.0f}", start=0, num=1000, withscores=True
            )
        resumed = 0
        for raw, at in due:
            split = keys.split_uid(raw.decode())
            if split is not None:
                resumed += await self._connection.script("requeue", *split, keys.DELAYED, f"{at:.0f}", "")
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
            if now < deadline_ms + OWN_END_MS and await self._is_running(raw.decode()):
                continue
            answer = (
                "gone"
                if split is None
                else await self._rollouts.settle(*split, RolloutEnd(RolloutStatus.EXPIRED, FinishReason.DEADLINE))
            )
            expired += answer == "ok"
            # The script takes a rollout that it ends off the list. One that had ended, or is gone, is taken off here.
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
        deleted = 0
        for batch_id in due:
            if not await self._held(batch_id.decode()):
                await self._batches.delete(batch_id.decode())
                deleted += 1
        return deleted

    async def fail(self, batch_id: str, index: int, failure: Failure) -> bool:
        """Ends a rollout with a failure; tells whether it had not ended before."""
        return await self._rollouts.settle(batch_id, index, RolloutEnd.failed(failure)) == "ok"

    async def cancel(self, batch_id: str, waited_for: Waiting) -> None:
        """Goes on with a batch whose cancellation has begun, and says what its rollouts waited for."""
        await cancel_batch(self._connection, batch_id, waited_for=waited_for)

    async def _held(self, batch_id: str) -> bool:
        """Whether a capability keeps a batch that is due to be deleted for some time more."""
        used = await self._connection.capabilities_of(batch_id)
        return any([await capability.holds(self._connection, batch_id) for capability in used])

    async def capability_letters(self, limit: int = 100) -> dict[str, list[str]]:
        """Returns what capabilities have given up, by field of `DeadLetters`, newest first."""
        with store_errors():
            found = [await capability.dead_letters(self._connection, limit) for capability in CAPABILITIES]
        return {name: uids for letters in found for name, uids in letters.items()}
