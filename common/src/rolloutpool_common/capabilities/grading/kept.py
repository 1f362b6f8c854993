"""Grading: the stage between the end of a rollout's conversation and its delivery, where it names a grader.

1. The worker that ran the conversation keeps its result, without a grade, in the place of the journal (`grade.lua`).
   From then on nothing can sample it again: whoever claims it next only grades it. It has left the list of deadlines,
   and its grader has a deadline of its own.
2. It is graded under the same claim, and then ended like every rollout, with its grade. If the worker dies, or the
   grader is to be asked again later, it is queued with what is kept of it.
3. A grader of groups needs the whole group. The claim is given up, and the rollout waits (`held`). When each of its
   siblings waits or has ended, the first of them leads: it is queued, and its worker grades all of them. The grades are
   kept before the first member is delivered (`group`), so that all of them have the grades of one call.
4. What has no grade when its deadline passes, and no worker, is delivered without one by the reconciler
   (`Grading.tidy`).

In the rollout's hash the field `stage` marks all that. `status` stays `queued` or `running`, so that claims and fences
work as ever; readers are shown `grading`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rolloutpool_common.capabilities.grading.wire import GroupGrades
from rolloutpool_common.outcomes import Failure
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.store import Claim, ClaimLost, Store, keys
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.outside_ends import failed_in_stage
from rolloutpool_common.store.records import LONG_RESULT, compress, expand, finish_fields
from rolloutpool_common.store.rows import row_of

STAGE = "grading"
MOST_MEMBERS = 1024
"""Of a group that is graded as a whole: one worker reads the results of all of them."""
LONG_DATA = 65_536
"""Bytes as they are stored; to read so many takes milliseconds."""


class KeptRollouts:
    """The rollouts of one store that are graded."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection
        self._redis = store.connection.redis
        self._rollouts = store.rollouts

    async def begin(
        self, claim: Claim, result: RolloutResult, *, seconds: float, group: str | None, attachments: bytes = b""
    ) -> str:
        """Keeps the result of a complete conversation, which is to be graded."""

        def write() -> bytes:
            return compress(encode_result(result))

        ids = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples)
        data = await asyncio.to_thread(write) if ids > LONG_RESULT else write()
        known = (int(seconds * 1000), group or "", MOST_MEMBERS, attachments)
        answer = await self._connection.script("grade", claim.batch_id, claim.index, claim.token, data, *known)
        if answer == b"fenced" and await self._rollouts.restore(claim, None, turns=result.num_llm_calls):
            answer = await self._connection.script("grade", claim.batch_id, claim.index, claim.token, data, *known)
        if answer == b"fenced":
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        return str(answer.decode())

    async def ungraded(self, batch_id: str, index: int) -> RolloutResult | None:
        """Reads what is kept of a complete conversation; None where there is nothing, because the rollout has ended."""
        with store_errors():
            data = await self._redis.get(keys.rollout(keys.uid_of(batch_id, index), "ungraded"))
        if data is None:
            return None
        if len(data) > LONG_DATA:
            return await asyncio.to_thread(_read, data)
        return _read(data)

    async def group(
        self, claim: Claim, grades: GroupGrades | None = None
    ) -> tuple[GroupGrades | None, Sequence[tuple[int, int]]]:
        """Reads what a leader knows of its group, and keeps these grades first unless there are some.

        Returns:
            The grades that are kept, by an earlier attempt perhaps; then the members that wait for them: their indexes,
            and the bytes that are kept of each.
        """
        data = b"" if grades is None else compress(grades.model_dump_json().encode())
        answer = await self._connection.script("group_grades", claim.batch_id, claim.index, claim.token, data)
        if not answer:
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        kept, found = answer[0], [int(n) for n in answer[1:]]
        members = list(zip(found[::2], found[1::2], strict=True))
        return (GroupGrades.model_validate_json(expand(kept)) if kept else None), members

    async def deliver(self, batch_id: str, result: RolloutResult) -> bool:
        """Ends a member of a group with its grade; False where it had ended. The kept grades decide what it says.

        Any worker that has them may do this, in any number, without a claim on the member.
        """
        fields = await finish_fields(result, row_of)
        return bool(
            await self._connection.of_batch("finish", batch_id, result.index, "", result.status, b"", *fields) == b"ok"
        )


def _read(data: bytes) -> RolloutResult:
    return RolloutResult.model_validate_json(expand(data))


@dataclass(frozen=True)
class GradingClaim:
    """Holds what a claim says of grading."""

    complete: bool = False
    """Whether its conversation is complete, and only its grade is missing."""
    leads: bool = False
    """Whether it stands for its whole group, which is to be graded."""
    tries: int = 0
    """How often its grader was asked already, and failed."""
    due_in_s: float = 0.0
    """While it is graded: seconds from the claim to its grader's deadline; below 0 where that has passed."""

    @classmethod
    def of(cls, claim: Claim) -> "GradingClaim":
        """Reads the notes of a claim (`grading_on_claim` in `_grading.lua`)."""
        notes = claim.notes
        due = notes.get("due_ms") or b"0"
        return cls(claim.stage == STAGE, bool(notes.get("leads")), int(notes.get("tries", 0)), int(due) / 1000)


def without_grade(result: RolloutResult, failure: Failure, *, tries: int = 0, ms: float | None = None) -> RolloutResult:
    """Makes the result of a rollout whose grade has failed: with all that was sampled, and without a reward."""
    report = None if result.grade is None else result.grade.model_copy(update={"tries": tries, "ms": ms})
    return failed_in_stage(result, failure).model_copy(update={"grade": report})
