"""Grades rollouts again that have ended: their stored results are read, a grader is asked, annotations are added.

1. The worker takes the regrade, so that no other one does the same (`regrades`), and keeps it while it works.
2. It goes through the rollouts slice by slice: some at a time, or for a grader of groups a group at a time. Those whose
   conversation is not complete are left out. A rollout whose grade had failed is complete.
3. The grader is asked as after a conversation: within its deadline, and again after 1, 2, 4 … seconds where it fails.
   Where its processes are busy, it is asked again too, because no other worker has the regrade.
4. What it says is added under the name that was asked for. No result is changed.
"""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from rolloutpool_common.capabilities.grading.annotating import MAX_NAMES, Regrade
from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.capabilities.grading.errors import GradeLate
from rolloutpool_common.capabilities.grading.regrades import LEASE_MS, RegradeJob, Regrades
from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.errors import RolloutError
from rolloutpool_common.outcomes import Boundary, FinishReason, RolloutStatus
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import StoreError
from rolloutpool_worker.capabilities.grading.base import GRADERS, Grader, GraderBusy
from rolloutpool_worker.capabilities.grading.host import GraderHost, pause_after
from rolloutpool_worker.capability import WorkerDoor

_log = logging.getLogger(__name__)

AT_ONCE = 8
"""Rollouts whose results are in memory, and that are graded at the same time."""
BUSY_SECONDS = 1.0
"""Until a grader is asked again that was busy."""
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
        known = await regrades.read(regrade_id)
        if known is None:
            return
        job = known[0]
        grader = GRADERS.get(job.grader.name)
        if grader is None:
            # Its message is older than this worker. Whoever asks how far the regrade is has another worker told.
            log_event(_log, logging.WARNING, "no such grader here", grader=job.grader.name, batch_id=job.batch)
            return
        if not await regrades.take(regrade_id, door.worker_id):
            return
        keeping = asyncio.create_task(_keep(door, regrade_id))
        try:
            await _Regrading(door, graders.host, grader, *known).run()
        finally:
            keeping.cancel()
        await regrades.leave(regrade_id, door.worker_id)
    except StoreError as error:
        _log.warning("regrade %s: %s", regrade_id, error.message)


async def _keep(door: WorkerDoor, regrade_id: str) -> None:
    while True:
        await asyncio.sleep(LEASE_MS / 4000)
        with suppress(StoreError):
            await Regrades(door.store).take(regrade_id, door.worker_id)


class _Regrading:
    def __init__(self, door: WorkerDoor, graders: GraderHost, grader: Grader, job: RegradeJob, found: Regrade) -> None:
        self._door = door
        self._graders = graders
        self._grader = grader
        self._job = job
        self._found = found
        """How far it is."""
        self._leaves = False
        """Whether the process shuts down before all of a slice was asked for."""

    async def run(self) -> None:
        """Goes through the rollouts that are not done, until all are, or the process shuts down."""
        found, at = self._found, 0
        for indexes in await self._slices():
            at += len(indexes)
            if at <= found.done:
                continue
            if self._door.drain.begun:
                return
            results = [result for index in indexes if (result := await self._read(index)) is not None]
            graded = await self._graded(results)
            if self._leaves:
                return
            if await self._annotate(at - len(indexes), graded):
                found.graded += len(graded)
            else:
                self._count("annotations_full", len(graded))
            found.left_out += len(indexes) - len(results)
            if not await Regrades(self._door.store).note(found, self._door.worker_id):
                return
        log_event(_log, logging.INFO, "regraded", batch_id=self._job.batch, rollouts=at)

    def _count(self, failure: str, rollouts: int) -> None:
        self._found.failures[failure] = self._found.failures.get(failure, 0) + rollouts

    async def _slices(self) -> list[list[int]]:
        """Divides the rollouts: always in the same way, because what is done is counted."""
        indexes = self._job.indexes
        if not self._grader.of_groups:
            return [indexes[start : start + AT_ONCE] for start in range(0, len(indexes), AT_ONCE)]
        _, groups = await self._door.store.rows.some(self._job.batch, indexes)
        found = sorted(zip(groups, indexes, strict=True), key=lambda one: (one[0] is None, one[0] or "", one[1]))
        grouped = itertools.groupby(found, key=lambda one: one[0] if one[0] is not None else one)
        return [[index for _, index in members] for _, members in grouped]

    async def _read(self, index: int) -> RolloutResult | None:
        """The result of a complete conversation, as its grader would have seen it; None for every other rollout."""
        data = await self._door.store.rollouts.result(f"{self._job.batch}-{index}")
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
        asked = [results] if self._grader.of_groups and results else [[result] for result in results]
        answers = await asyncio.gather(*map(self._ask, asked))
        return {index: grade for grades in answers for index, grade in grades.items()}

    async def _ask(self, results: Sequence[RolloutResult]) -> dict[int, Grade]:
        choice, grader, tries = self._job.grader, self._grader, 0
        due = time.monotonic() + choice.deadline_seconds
        while True:
            try:
                if (left := due - time.monotonic()) <= 0:
                    raise GradeLate(group=grader.of_groups)
                grades = await self._graders.ask(grader, results, choice.options, left_s=left, warnings=set())
                return {result.index: grade for result, grade in zip(results, grades, strict=True)}
            except GraderBusy:
                pause = BUSY_SECONDS
            except RolloutError as error:
                again = pause_after(error, choice, tries, due)
                if again is None:
                    self._count(error.category, len(results))
                    return {}
                pause, tries = again, tries + 1
            if self._door.drain.begun:
                self._leaves = True
                return {}
            await asyncio.sleep(pause)

    async def _annotate(self, begin: int, graded: dict[int, Grade]) -> bool:
        """Adds the grades of a slice; False where the annotations of the batch would take too much."""
        if not graded:
            return True
        job, name = self._job, self._job.annotation
        scalars: dict[str, dict[int, float]] = {name: {}}
        streams: dict[int, dict[str, list[list[float | None]]]] = {}
        known = len(await Annotations(self._door.store).scalars(job.batch))
        for index, grade in graded.items():
            scalars[name][index] = grade.reward
            for part, value in grade.parts.items():
                full = f"{name}.{part}"
                # Names of annotations have letters that any reader takes, and a batch has a limited number.
                if _PART.fullmatch(part) and len(full) <= LONGEST_NAME and known + len(scalars) < MAX_NAMES:
                    scalars.setdefault(full, {})[index] = value
            if grade.token_rewards is not None:
                streams[index] = {name: [list(row) for row in grade.token_rewards]}
        request_id = f"{self._found.regrade_id}/{begin}"
        used = await Annotations(self._door.store).append(
            job.batch, request_id, scalars, streams, max_bytes=job.max_bytes
        )
        return used is not None
