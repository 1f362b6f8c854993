"""Results of rollouts that are ended from outside: cancelled by their caller, expired in the queue, or failed for good.

No worker makes such a result, so it has no samples. It says what the rollout itself waited for at that moment.
"""

import time
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.composition import from_options
from rolloutpool_common.outcomes import Failure, FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.offers import needs_of
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.pool_waits import PoolState, PoolWaits
from rolloutpool_common.store.records import expand, merge_fields
from rolloutpool_common.store.waits import is_queued, own_wait, run_wait, stage_waits


@dataclass(frozen=True)
class OpenRollout:
    """A rollout that has not ended, as Redis has it."""

    batch_id: str
    index: int
    fields: dict[str, Any]
    """Its spec."""
    group: bytes | None
    state: bytes | None
    attempt: bytes | None
    worker: bytes | None
    note: bytes | None
    """What its worker has said that it waits for."""
    stage: bytes | None = None

    def wait(self, pool: PoolState | None, stopped: Waiting | None) -> Waiting | None:
        """Says what it waits for; `stopped` where its run stands still, `pool` where it may wait in the queue."""
        noted = own_wait(self.note, self.attempt, time.time())
        if self.stage is not None:
            return noted or next(iter(stage_waits(1)), None)
        noted = noted or stopped
        if noted is not None or pool is None or not is_queued(self.state):
            return noted
        name, needs = self.fields.get("tokenizer_name"), needs_of(self.fields)
        return next(iter(pool.waits([name] if name else [], needs=[needs] if needs else [])), None)

    def ended(self, end: RolloutEnd, waited_for: Waiting | None = None) -> RolloutResult:
        """Makes its result."""
        return RolloutResult(
            uid=keys.uid_of(self.batch_id, self.index),
            rollout_id=self.fields["rollout_id"],
            batch_id=self.batch_id,
            index=self.index,
            group=self.group.decode() if self.group is not None else None,
            labels=self.fields.get("labels", {}),
            metadata=self.fields["metadata"],
            status=end.status,
            finish_reason=end.reason,
            failure=end.failure,
            waited_for=waited_for,
            attempt=int(self.attempt or 0),
            worker=self.worker.decode() if self.worker is not None else None,
            spans=Spans(),
            **from_options(self.fields),
        )


async def outside_result(
    connection: Connection, pool: PoolWaits, place: tuple[str, int], end: RolloutEnd
) -> RolloutResult | str:
    """Reads what is known of a rollout, named by batch and index, and makes its result; a word where it has ended."""
    batch_id, index = place
    uid = keys.uid_of(batch_id, index)
    with store_errors():
        pipe = connection.redis.pipeline(transaction=False)
        pipe.hmget(keys.batch(batch_id), "shared", "run")
        pipe.hget(keys.batch(batch_id, "items"), str(index))
        pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "waits")
        pipe.hget(keys.batch(batch_id, "groups"), str(index))
        pipe.get(keys.rollout(uid, "ungraded"))
        (shared, run), overrides, known, group, ungraded = await pipe.execute()
    if shared is None or overrides is None:
        return "gone"
    state = known[0]
    if state is not None and RolloutStatus(state.decode()).terminal:
        return str(state.decode())
    if ungraded is not None and end.failure is not None:
        # Its conversation is complete, and what was sampled is good: only its stage has failed.
        return failed_in_stage(RolloutResult.model_validate_json(expand(ungraded)), end.failure)
    rollout = OpenRollout(batch_id, index, merge_fields(shared, overrides, uid=uid), group, *known)
    waited = None
    if end.failure is None:
        found = await pool.look() if is_queued(state) else None
        waited = rollout.wait(found, await run_wait(connection, run))
    return rollout.ended(end, waited)


def failed_in_stage(result: RolloutResult, failure: Failure) -> RolloutResult:
    """Makes the result of a rollout whose stage has failed: with all that was sampled, and without a reward."""
    return result.model_copy(
        update={
            **{"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR, "failure": failure},
            **{"reward": None, "reward_parts": {}},
        }
    )
