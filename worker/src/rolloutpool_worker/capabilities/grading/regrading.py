"""Grades rollouts again that have ended: their stored results are read, a grader is asked, annotations are added.

1. The worker takes the regrade, so that no other one does the same (`regrades`), and keeps it while it works.
2. It goes through the rollouts slice by slice: some at a time, or for a grader of groups a group at a time. Those whose
   conversation is not complete are left out. A rollout whose grade had failed is complete.
3. The grader is asked as after a conversation: within its deadline, and again after 1, 2, 4 … seconds where it fails.
4. What it says is added under the name that was asked for. No result is changed.
"""

import asyncio
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from rolloutpool_common.capabilities.grading.annotating import MAX_NAMES
from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.capabilities.grading.errors import GraderFault
from rolloutpool_common.capabilities.grading.regrades import LEASE_MS, RegradeJob, Regrades, SliceDone
from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.errors import RolloutError
from rolloutpool_common.outcomes import Boundary, FinishReason, RolloutStatus
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import StoreError
from rolloutpool_worker.capabilities.grading.base import GRADERS, Grader
from rolloutpool_worker.capabilities.grading.host import GraderHost
from rolloutpool_worker.capability import WorkerDoor

_log = logging.getLogger(__name__)

AT_ONCE = 8
"""Rollouts whose results are in memory, and that are graded at the same time."""
LONGEST_PAUSE = 60.0
LONGEST_NAME = 64
"""Characters of an annotation's name."""
_PART = re.compile(r"[A-Za-z0-9_.-]+")


class GraderOwner(Protocol):
    """Who has the graders of a process."""

    host: GraderHost


async def regrade(door: WorkerDoor, graders: GraderOwner, regrade_id: str) -> None:
    """Does a regrade, or what is left of it; does nothing where another worker does."""
    regrades = Regrades(door.store)
    try:
        job = await regrades.job(regrade_id)
        if job is not None and GRADERS.get(job.grader.name) is None:
            # Its message is older than this worker. Whoever asks how far the regrade is has another worker told.
            log_event(_log, logging.WARNING, "no such grader here", grader=job.grader.name, batch_id=job.batch_id)
            return
        done = None if job is None else await regrades.take(regrade_id, door.worker_id)
        if job is None or done is None:
            return
        keeping = asyncio.create_task(_keep(door, regrade_id))
        try:
            await _Regrading(door, graders.host, job).run(done)
        finally:
            keeping.cancel()
        # Where this process shuts down: the next one to ask finds it idle.
        await regrades.take(regrade_id, door.worker_id, lease_ms=0)
    except StoreError as error:
        _log.warning("regrade %s: %s", regrade_id, error.message)


async def _keep(door: WorkerDoor, regrade_id: str) -> None:
    while True:
        await asyncio.sleep(LEASE_MS / 4000)
        with suppress(StoreError):
            await Regrades(door.store).take(regrade_id, door.worker_id)


class _Regrading:
    def __init__(self, door: WorkerDoor, graders: GraderHost, job: RegradeJob) -> None:
        self._door = door
        self._graders = graders
        self._job = job
        self._grader = GRADERS.get(job.grader.name)
        self._failures: Counter[str] = Counter()

    async def run(self, done: int) -> None:
        """Goes through the rollouts from `done` on, until all are done, or the process shuts down."""
        job, slices = self._job, await self._slices()
        at = 0
        for indexes in slices:
            begin, at = at, at + len(indexes)
            if begin < done:
                continue
            if self._door.drain.begun:
                return
            self._failures.clear()
            results = [result for index in indexes if (result := await self._read(index)) is not None]
            graded = await self._graded(results)
            added = await self._annotate(begin, graded)
            if not added:
                self._failures["annotations_full"] += len(graded)
            left_out = len(indexes) - len(results)
            did = SliceDone(begin, at, len(graded) if added else 0, left_out, dict(self._failures))
            if not await Regrades(self._door.store).note(job.regrade_id, self._door.worker_id, did):
                return
        log_event(_log, logging.INFO, "regraded", batch_id=job.batch_id, rollouts=at)

    async def _slices(self) -> list[list[int]]:
        """Divides the rollouts: always in the same way, because what is done is counted."""
        indexes = self._job.indexes
        if self._grader is None or not self._grader.of_groups:
            return [indexes[start : start + AT_ONCE] for start in range(0, len(indexes), AT_ONCE)]
        _, groups = await self._door.store.rows.some(self._job.batch_id, indexes)
        found = sorted(zip(groups, indexes, strict=True), key=lambda one: (one[0] is None, one[0] or "", one[1]))
        grouped = itertools.groupby(found, key=lambda one: one[0] if one[0] is not None else one)
        return [[index for _, index in members] for _, members in grouped]

    async def _read(self, index: int) -> RolloutResult | None:
        """The result of a complete conversation, as its grader would have seen it; None for every other rollout."""
        data = await self._door.store.rollouts.result(f"{self._job.batch_id}-{index}")
        if data is None:
            return None
        result = RolloutResult.model_validate_json(data)
        failure = result.failure
        if failure is not None and failure.boundary is Boundary.GRADER:
            reason = FinishReason.STOP if result.grade is None else result.grade.finish_reason
            ended = {"status": RolloutStatus.COMPLETED, "finish_reason": reason, "failure": None}
            return result.model_copy(update=ended)
        return result if result.status is RolloutStatus.COMPLETED else None

    async def _graded(self, results: Sequence[RolloutResult]) -> dict[int, Grade]:
        """Asks for the grades; those that failed are counted."""
        together = self._grader is not None and self._grader.of_groups
        asked = [results] if together and results else [[result] for result in results]
        graded: dict[int, Grade] = {}
        for some, grades in zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True):
            graded.update(zip([result.index for result in some], grades, strict=False))
        return graded

    async def _ask(self, results: Sequence[RolloutResult]) -> list[Grade]:
        choice, grader = self._job.grader, self._grader
        due = time.monotonic() + choice.deadline_seconds
        for tries in itertools.count():
            try:
                return await self._ask_once(grader, results, due)
            except RolloutError as error:
                pause = min(2.0**tries, LONGEST_PAUSE)
                again = isinstance(error, GraderFault) and error.retryable and tries < choice.retries
                if not again or time.monotonic() + pause >= due or self._door.drain.begun:
                    self._failures[error.category] += len(results)
                    return []
                await asyncio.sleep(pause)
        raise AssertionError

    async def _ask_once(self, grader: Grader | None, results: Sequence[RolloutResult], due: float) -> list[Grade]:
        if grader is None:
            raise GraderFault(f"no grader {self._job.grader.name!r} on this worker; it has {GRADERS.names()}")
        left = due - time.monotonic()
        options = self._job.grader.options
        return await self._graders.ask(grader, results, options, left_s=left, warnings=set(), insists=True)

    async def _annotate(self, begin: int, graded: dict[int, Grade]) -> bool:
        """Adds the grades of a slice; False where the annotations of the batch would take too much."""
        if not graded:
            return True
        job, name = self._job, self._job.annotation
        scalars: dict[str, dict[int, float]] = {name: {}}
        streams: dict[int, dict[str, list[list[float | None]]]] = {}
        known = len(await Annotations(self._door.store).scalars(job.batch_id))
        for index, grade in graded.items():
            scalars[name][index] = grade.reward
            for part, value in grade.parts.items():
                full = f"{name}.{part}"
                # Names of annotations have letters that any reader takes, and a batch has a limited number.
                if _PART.fullmatch(part) and len(full) <= LONGEST_NAME and known + len(scalars) < MAX_NAMES:
                    scalars.setdefault(full, {})[index] = value
            if grade.token_rewards is not None:
                streams[index] = {name: [list(row) for row in grade.token_rewards]}
        request_id = f"{job.regrade_id}/{begin}"
        used = await Annotations(self._door.store).append(
            job.batch_id, request_id, scalars, streams, max_bytes=job.max_bytes
        )
        return used is not None
