"""Says what rollouts wait for, in the batch's state and in the log, without a line per try.

1. A call fails and will be repeated, or its rollout goes back to the queue: `RolloutWaits.failed`.
2. The rollout's state gets it, and the batch's too where it is another kind of wait, else at most once a second for
   each batch and endpoint. A store that fails costs nothing but the note.
3. The log gets one warning for each endpoint and minute, with the number of tries that failed since the one before.
4. A call has no answer after `SLOW_SECONDS`: `RolloutWaits.asks` notes that, and again each minute. The log gets
   nothing, because long turns of a large model are no fault.
5. The call succeeds: `RolloutWaits.worked`. Its note is taken away; the batch's, when no rollout of the batch waits at
   that endpoint any more, with whatever worker. The store counts them.
6. A rollout goes back to the queue because its worker lacks a tool, or its environment room: `RolloutWaits.lacks`.

Nothing is written where nothing waits: `worked` is called only after a note.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import StoreError
from rolloutpool_common.store.waits import Waits
from rolloutpool_worker.policy.deadlines import Deadlines

_log = logging.getLogger(__name__)

NOTE_SECONDS = 1.0
WARN_SECONDS = 60.0
SLOW_SECONDS = 15.0
"""A call that takes longer is noted."""
AGAIN_SECONDS = 60.0
"""From one such note to the next. A hundred calls that only wait made most of a resting pool's writes."""
_LONGEST = 500
"""Characters of a message."""
_MOST = 4_096
"""Endpoints, and pairs of batch and endpoint, that are remembered. Beyond that all are forgotten: they are limits of
frequency, and nothing else depends on them."""


@dataclass
class _Warned:
    at: float
    failed: int = 0
    """Tries since then."""


class ProcessWaits:
    """Holds what the rollouts of one process wait for."""

    def __init__(
        self, store: Waits, clock: Callable[[], float] = time.monotonic, *, deadlines: Deadlines | None = None
    ) -> None:
        """`clock` returns seconds; tests pass their own. `deadlines` are the process's."""
        self.deadlines = deadlines or Deadlines()
        self._store = store
        self._clock = clock
        self._noted: dict[tuple[str, str], tuple[WaitsFor, float]] = {}
        """By batch and endpoint: of which kind the batch's last note was, and when it got that."""
        self._warned: dict[str, _Warned] = {}

    def of(self, batch_id: str, uid: str, endpoint: str, attempt: int) -> "RolloutWaits":
        """Makes what one rollout reports to."""
        return RolloutWaits(self, batch_id, uid, endpoint, attempt)

    async def failed(self, batch_id: str, uid: str, endpoint: str, attempt: int, waiting: Waiting) -> None:
        """Takes note of a try that failed."""
        self._warn(endpoint, waiting)
        await self.note(batch_id, uid, endpoint, attempt, waiting)

    async def note(self, batch_id: str, uid: str, endpoint: str, attempt: int, waiting: Waiting) -> None:
        """Writes why a rollout waits."""
        if len(self._noted) > _MOST:
            self._noted.clear()
        now, place, kind = self._clock(), (batch_id, endpoint), waiting.waits_for
        last, noted_at = self._noted.get(place, (None, 0.0))
        # One refused call a second would hide that the port is taken out, which is said right after it.
        due = kind is not last or now >= noted_at + NOTE_SECONDS
        if due:
            self._noted[place] = kind, now
        with suppress(StoreError):
            await self._store.note(uid, attempt, waiting, batch=due)

    async def worked(self, batch_id: str, uid: str, endpoint: str, attempt: int) -> None:
        """Takes note of an answer after a try that failed."""
        # The batch's note may go with this one. Whoever waits still, or waits next, then says so at once.
        self._noted.pop((batch_id, endpoint), None)
        with suppress(StoreError):
            await self._store.clear(uid, attempt, endpoint)

    def _warn(self, endpoint: str, waiting: Waiting) -> None:
        now = self._clock()
        known = self._warned.get(endpoint)
        if known is not None:
            known.failed += 1
            if now < known.at + WARN_SECONDS:
                return
        _log.warning(
            "rollouts wait for %s%s: %s; %d tries failed since the last warning",
            waiting.waits_for,
            f" at {waiting.endpoint}" if waiting.endpoint else "",
            waiting.message,
            known.failed if known else 1,
        )
        if len(self._warned) > _MOST:
            self._warned.clear()
        self._warned[endpoint] = _Warned(now)


class RolloutWaits:
    """Holds what one rollout waits for."""

    def __init__(self, process: ProcessWaits, batch_id: str, uid: str, endpoint: str, attempt: int) -> None:
        self.now: Waiting | None = None
        """None while it does not wait."""
        self.tried = 0
        """Calls of the present turn that have failed in a row; an earlier attempt's too, if a drain has ended it."""
        self.deadlines = process.deadlines
        self._process = process
        self._where = batch_id, uid, endpoint, attempt

    async def failed(self, error: RolloutPoolError, tries: int, wait_s: float, *, port: bool = False) -> None:
        """Reports that a try failed and that there will be another one."""
        _, _, endpoint, _ = self._where
        now = time.time()
        waiting = Waiting(
            waits_for=WaitsFor.TRAINER_PORT if port else WaitsFor.TRAINER,
            endpoint=endpoint,
            status=getattr(error, "http_status", None),
            message=error.message[:_LONGEST],
            tries=tries,
            last_try=datetime.fromtimestamp(now, UTC),
            next_try=datetime.fromtimestamp(now + wait_s, UTC),
        )
        # At once, because the deadline may pass while the note is on its way.
        self.now = waiting
        await self._process.failed(*self._where, waiting)

    async def lacks(self, what: WaitsFor, message: str, wait_s: float) -> None:
        """Reports that the rollout goes back to the queue for want of something that is no trainer."""
        batch_id, uid, _, attempt = self._where
        # It waits here until it leaves, which is soon.
        self._where = batch_id, uid, str(what), attempt
        now = time.time()
        waiting = Waiting(
            waits_for=what,
            message=message[:_LONGEST],
            tries=1,
            last_try=datetime.fromtimestamp(now, UTC),
            next_try=datetime.fromtimestamp(now + wait_s, UTC),
        )
        self.now = waiting
        await self._process.failed(*self._where, waiting)

    def asks(self, where: str) -> "SlowCall":
        """Reports a call that has no answer for long, until the caller says that it has ended (`SlowCall.end`)."""
        call = SlowCall(self, where)
        self.deadlines.add(call)
        return call

    async def slow(self, where: str, begun: float) -> None:
        """Reports that a call, begun at this Unix time, has no answer yet."""
        _, _, endpoint, _ = self._where
        now = time.time()
        waiting = Waiting(
            waits_for=WaitsFor.TRAINER,
            endpoint=endpoint,
            message=f"{where}: no answer for more than {now - begun:.0f} s"[:_LONGEST],
            last_try=datetime.fromtimestamp(begun, UTC),
            # Nothing is tried then, but a note without it, or with an old one, counts as out of date.
            next_try=datetime.fromtimestamp(now + AGAIN_SECONDS, UTC),
        )
        self.now = waiting
        await self._process.note(*self._where, waiting)

    async def worked(self) -> None:
        """Reports an answer after something was noted."""
        self.now = None
        await self._process.worked(*self._where)

    async def ended(self) -> None:
        """Reports that the rollout is about to end; nothing is written unless it waits."""
        if self.now is not None:
            await self.worked()


class SlowCall:
    """A call of the policy that runs; it costs next to nothing where it is quick."""

    __slots__ = ("_begun", "_ended", "_task", "_waits", "_where", "due")

    def __init__(self, waits: RolloutWaits, where: str) -> None:
        self._waits = waits
        self._where = where
        self._begun = time.time()
        self._ended: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self.due = asyncio.get_running_loop().time() + SLOW_SECONDS

    def end(self) -> Awaitable[None] | None:
        """Ends the reports. What it returns is to be awaited: a report is on its way."""
        self._waits.deadlines.waiting.discard(self)
        if self._task is None or self._ended is None:
            return None
        self._ended.set()
        # Otherwise its note could come after the one that takes it away.
        return self._task

    def expire(self) -> None:
        """The call takes long."""
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._report(self._ended))

    async def _report(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await self._waits.slow(self._where, self._begun)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await ended.wait()
