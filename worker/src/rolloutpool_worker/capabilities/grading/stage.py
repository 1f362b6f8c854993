"""The stage after a rollout's conversation, where the rollout names a grader: keep what was sampled, grade, deliver.

1. Only a completed conversation is graded. Its result is kept first (`kept`), so whatever happens from here on
   samples nothing again. A claim of a rollout that was kept before begins here too: it has no conversation.
2. A grader of groups: the rollout is held until its group can be graded (`HeldForGroup`). The claim on the member that
   leads then stands for all of them.
3. The grader is asked, within its deadline. Where it fails for reasons of its own, the rollout goes back to the queue
   and it is asked again after 1, 2, 4 … seconds (`GraderAgain`), by another worker perhaps. Where its processes are
   busy for long, the rollout goes back too, and it was no try (`GraderBusy`).
4. The grade goes into the result. If there is none, the result says why (`failure`) and has no reward: never 0. What
   was sampled is delivered in any case.

For example, a worker dies while a grader runs: the next claim reads the kept result, asks the grader, and finishes.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rolloutpool_common.capabilities.grading.errors import GradeLate, GraderFault
from rolloutpool_common.capabilities.grading.kept import GradingClaim, KeptRollouts, without_grade
from rolloutpool_common.capabilities.grading.wire import GradeReport, GroupGrades
from rolloutpool_common.errors import RequestFault, RolloutError
from rolloutpool_common.outcomes import Failure, RolloutStatus
from rolloutpool_common.process import failpoints
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import ClaimLost, StoreError
from rolloutpool_worker.capabilities.grading.base import GRADERS, GraderAgain, GraderBusy, HeldForGroup
from rolloutpool_worker.capabilities.grading.host import GraderHost, pause_after
from rolloutpool_worker.capability import Talk

LONGEST_MESSAGE = 500
"""Characters of what people read about a try that failed."""
MOST_GROUP_BYTES = 32 * 2**20
"""Of the results of a group, as they are stored: one worker has all of them in memory."""


class GradingStage:
    """The grading of one claimed rollout."""

    def __init__(self, talk: Talk, graders: GraderHost) -> None:
        """Asks nothing yet."""
        self._talk, self._retry = talk, talk.retry
        self._graders = graders
        self._attachments = b""
        self._store = KeptRollouts(talk.store)
        self._claim = talk.claim
        # A rollout uses the capability because it names a grader.
        assert talk.claim.spec.grader is not None
        self._choice = talk.claim.spec.grader
        self._grader = GRADERS.get(self._choice.name)
        self._known = GradingClaim.of(talk.claim)
        self._kept: RolloutResult | None = None
        """What this attempt has kept: None until Redis has said so."""
        self._tries = self._known.tries
        """How often the grader was asked."""
        self._due = time.monotonic() + self._known.due_in_s
        self._warnings: set[str] = set()

    async def run(self, ending: RolloutResult | BaseException | None) -> RolloutResult | BaseException:
        """Grades a rollout if it is to be graded."""
        complete = isinstance(ending, RolloutResult) and ending.status is RolloutStatus.COMPLETED
        if ending is not None and not complete:
            return ending
        if isinstance(ending, RolloutResult):
            self._attachments = self._talk.attachments(ending)
        try:
            with self._talk.running(self._verify):
                return await self._graded(ending if isinstance(ending, RolloutResult) else None)
        except (GraderAgain, GraderBusy, HeldForGroup, ClaimLost, StoreError, asyncio.CancelledError) as error:
            return error

    async def _graded(self, complete: RolloutResult | None) -> RolloutResult:
        claim = self._claim
        result = complete or await self._read(claim.index)
        if result is None:
            raise ClaimLost(f"rollout {claim.uid}: its result was kept, and is gone")
        if result.grade is None:
            report = GradeReport(grader=self._choice.name, finish_reason=result.finish_reason)
            result = result.model_copy(update={"grade": report})
        of_group = self._grader is not None and self._grader.of_groups and claim.group is not None
        if complete is not None or (of_group and not self._known.leads):
            failure = await self._keep(result, claim.group if of_group else None)
            if failure is not None:
                return without_grade(result, failure)
        if of_group:
            return await self._group_graded(result)
        return self._with_grade(result, await self._grades_of((), {claim.index: result}))

    async def _keep(self, result: RolloutResult, group: str | None) -> Failure | None:
        """Keeps the result of a complete conversation."""
        seconds = self._choice.deadline_seconds
        answer = await self._retry(lambda: self._begin(result, seconds, group))
        if not self._known.complete:
            self._due = time.monotonic() + seconds
        # Not before the deadline is known: `_verify` would keep it with one that has passed.
        self._kept = result
        failpoints.hit("worker.kept_before_grade")
        if answer == "held":
            # It may have been the last of its group, which then waits in the outbox.
            self._talk.publish_soon()
            raise HeldForGroup
        if answer == "late":
            return GradeLate("the group's deadline passed before this rollout had ended", group=True).failure()
        if answer == "large":
            return RequestFault(f"group {group!r} has too many rollouts for a grader of groups").failure()
        return None

    async def _begin(self, result: RolloutResult, seconds: float, group: str | None) -> str:
        return await self._store.begin(self._claim, result, seconds=seconds, group=group, attachments=self._attachments)

    async def _group_graded(self, own: RolloutResult) -> RolloutResult:
        """Grades the group that this rollout leads, delivers the others, and returns this rollout's result."""
        claim, read = self._claim, {own.index: own}
        kept, members = await self._retry(lambda: self._store.group(claim))
        if kept is None:
            grades = await self._grades_of(members, read)
            kept, members = await self._retry(lambda: self._store.group(claim, grades))
        assert kept is not None
        for index, _ in members:
            failpoints.hit("worker.grades_before_delivery")
            result = read.get(index) or await self._read(index)
            # It may have been cancelled, or an earlier attempt has delivered it.
            if index != own.index and result is not None:
                await self._deliver(self._with_grade(result, kept, members=len(kept.grades)))
        return self._with_grade(own, kept, members=len(kept.grades))

    async def _grades_of(self, members: Sequence[tuple[int, int]], read: dict[int, RolloutResult]) -> GroupGrades:
        """Asks for the grades of the members of a group, or of the rollout alone; `read` gets the members' results."""
        grader = self._grader
        start = time.monotonic()
        try:
            if grader is None:
                raise GraderFault(f"no grader {self._choice.name!r} on this worker; it has {GRADERS.names()}")
            if (size := sum(stored for _, stored in members)) > MOST_GROUP_BYTES:
                raise RequestFault(f"the results of the group take {size:,} bytes, at most {MOST_GROUP_BYTES:,}")
            for index, _ in members:
                result = read.get(index) or await self._read(index)
                if result is not None:
                    read[index] = result
            start = time.monotonic()
            if (left := self._due - start) <= 0:
                raise GradeLate(group=grader.of_groups)
            self._tries += 1
            indexes = sorted(read)
            rollouts = [read[index] for index in indexes]
            options = self._choice.options
            grades = await self._graders.ask(grader, rollouts, options, left_s=left, warnings=self._warnings)
        except RolloutError as error:
            await self._pause_if_again(error)
            failure = error.failure()
            if members:
                failure = failure.model_copy(update={"message": f"the group has no grade: {failure.message}"})
            return GroupGrades(failure=failure, tries=self._tries, ms=_ms(start))
        return GroupGrades(grades=dict(zip(indexes, grades, strict=True)), tries=self._tries, ms=_ms(start))

    async def _deliver(self, result: RolloutResult) -> None:
        if await self._retry(lambda: self._store.deliver(self._claim.batch_id, result)):
            self._talk.delivered(result)

    async def _pause_if_again(self, error: RolloutError) -> None:
        """Raises `GraderAgain` where the grader is asked again after this error, and notes that the rollout waits."""
        tries = self._known.tries
        pause = pause_after(error, self._choice, tries, self._due)
        if pause is None:
            return
        now = datetime.now(UTC)
        waiting = Waiting(
            waits_for=WaitsFor.GRADER,
            message=error.message[:LONGEST_MESSAGE],
            tries=tries + 1,
            last_try=now,
            next_try=now + timedelta(seconds=pause),
        )
        await self._talk.wait(waiting)
        raise GraderAgain(error.message, pause)

    def _with_grade(self, result: RolloutResult, kept: GroupGrades, *, members: int | None = None) -> RolloutResult:
        grade = kept.grades.get(result.index)
        if grade is None:
            failure = kept.failure or GradeLate(group=True).failure()
            return without_grade(result, failure, tries=kept.tries, ms=kept.ms if kept.tries else None)
        assert result.grade is not None
        report = result.grade.model_copy(update={"tries": kept.tries, "ms": kept.ms, "members": members})
        return result.model_copy(
            update={
                "reward": grade.reward,
                "reward_parts": grade.parts,
                "token_rewards": grade.token_rewards,
                "grade": report,
                "warnings": [*result.warnings, *sorted(self._warnings)],
            }
        )

    async def _read(self, index: int) -> RolloutResult | None:
        return await self._retry(lambda: self._store.ungraded(self._claim.batch_id, index))

    async def _verify(self) -> None:
        """Makes sure that a Redis which was started again has the claim and what was kept; raises `ClaimLost`."""
        if self._kept is not None:
            seconds = max(self._due - time.monotonic(), 0.001)
            await self._begin(self._kept, seconds, None)
        elif not await self._talk.store.rollouts.restore(self._claim, None, turns=0):
            raise ClaimLost


def _ms(start: float) -> float:
    return round((time.monotonic() - start) * 1000, 1)
