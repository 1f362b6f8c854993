"""Grading: the stage between the end of a rollout's conversation and its delivery, where it names a grader.

1. The worker that ran the conversation keeps its result, without a grade, in the place of the journal (`grade.lua`).
   From then on nothing can sample it again: whoever claims it next only grades it. It has left the list of deadlines,
   and its grader has a deadline of its own.
2. It is graded under the same claim, and then ended like every rollout, with its grade. If the worker dies, or the
   grader is to be asked again later, it is queued with what is kept of it.
3. A grader of groups needs the whole group. The claim is given up, and the rollout waits (`held`). When each of its
   siblings waits or has ended, the first of them leads: it is queued, and its worker grades all of them. The grades are
   kept before the first member is delivered (`keep`), so that all of them have the grades of one call.
4. What has no grade when its deadline passes, and no worker, is delivered without one (`end_late`, by the reconciler).

In the rollout's hash the field `stage` marks all that. `status` stays `queued` or `running`, so that claims and fences
work as ever; readers are shown `grading`.
"""

import asyncio
from collections.abc import Sequence

from rolloutpool_common.errors import GradeLate
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.grading import GroupGrades
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.store import keys
from rolloutpool_common.store.claims import Claim
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import ClaimLost, store_errors
from rolloutpool_common.store.records import LONG_RESULT, compress, expand, finish_fields
from rolloutpool_common.store.rollouts import Rollouts
from rolloutpool_common.store.rows import row_of

__all__ = ["MOST_MEMBERS", "Grading"]

MOST_MEMBERS = 1024
"""Of a group that is graded as a whole: one worker reads the results of all of them."""
LONG_DATA = 65_536
"""Bytes as they are stored; to read so many takes milliseconds."""
AT_ONCE = 1000
"""Rollouts whose deadline has passed, in one round."""


class Grading:
    """The rollouts of one store that are graded."""

    def __init__(self, connection: Connection, rollouts: Rollouts) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._rollouts = rollouts

    async def begin(
        self, claim: Claim, result: RolloutResult, *, seconds: float, group: str | None, attachments: bytes = b""
    ) -> str:
        """Keeps the result of a complete conversation, which is to be graded.

        Args:
            claim: Under which it ran.
            result: Without a grade.
            seconds: Until the grader's deadline.
            group: The group that is graded as a whole; None where the rollout is graded alone.
            attachments: As of `Rollouts.finish`.

        Returns:
            `ok`, `held`, `late` or `large` (`grade.lua`).

        Raises:
            ClaimLost: The rollout is no longer this worker's.
        """

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

    async def members(self, claim: Claim) -> Sequence[tuple[int, int]]:
        """Lists the members of a leader's group that wait for its grade: their indexes, and the bytes that are kept."""
        found = [int(n) for n in await self._connection.script("group_members", claim.batch_id, claim.index)]
        return list(zip(found[::2], found[1::2], strict=True))

    async def kept(self, claim: Claim) -> GroupGrades | None:
        """Reads the grades that an earlier attempt has kept for the group; None where there are none."""
        with store_errors():
            data = await self._redis.get(keys.rollout(claim.uid, "grades"))
        return None if data is None else GroupGrades.model_validate_json(expand(data))

    async def keep(self, claim: Claim, grades: GroupGrades) -> GroupGrades:
        """Keeps the grades of a group before any member is delivered.

        Args:
            claim: Of the member that leads.
            grades: All of them, or why there are none.

        Returns:
            What is kept: these, or those of an earlier attempt.

        Raises:
            ClaimLost: The rollout is no longer this worker's.
        """
        data = compress(grades.model_dump_json().encode())
        kept = await self._connection.script("keep_grades", claim.batch_id, claim.index, claim.token, data)
        if not kept:
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        return GroupGrades.model_validate_json(expand(kept))

    async def deliver(self, batch_id: str, result: RolloutResult) -> bool:
        """Ends a member of a group with its grade; False where it had ended. The kept grades decide what it says.

        Any worker that has them may do this, in any number, without a claim on the member.
        """
        fields = await finish_fields(result, row_of)
        return bool(
            await self._connection.script("finish", batch_id, result.index, "", result.status, b"", *fields) == b"ok"
        )

    async def end_late(self) -> int:
        """Delivers rollouts without a grade whose grader's deadline has passed; returns how many."""
        ended = 0
        for raw in await self._connection.script("grades_due", AT_ONCE):
            uid = raw.decode()
            split = keys.split_uid(uid)
            answer = "gone"
            if split is not None:
                late = await self._late(*split)
                answer = await self._rollouts.settle(*split, RolloutStatus.FAILED, FinishReason.ERROR, late.failure())
            ended += answer == "ok"
            # The script takes a rollout that it ends off the list. One that is gone is taken off here.
            if answer != "ok":
                with store_errors():
                    await self._redis.zrem(keys.GRADING, uid)
        return ended

    async def _late(self, batch_id: str, index: int) -> GradeLate:
        with store_errors():
            group = await self._redis.hget(keys.batch(batch_id, "groups"), str(index))
            of_group = group is not None and await self._redis.hexists(
                keys.batch(batch_id, "group_counts"), f"due:{group.decode()}"
            )
        if of_group:
            return GradeLate("the group had no grade when its grader's deadline passed", group=True)
        return GradeLate()


def _read(data: bytes) -> RolloutResult:
    return RolloutResult.model_validate_json(expand(data))
