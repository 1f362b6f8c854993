"""Results of rollouts that are ended from outside: cancelled by their caller, expired in the queue, or failed for good.

No worker makes such a result, so it has no samples. It says what the rollout itself waited for at that moment.
"""

import time
from typing import Any

from rolloutpool_common.outcomes import Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.offers import needs_of
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.pool_waits import PoolState, PoolWaits
from rolloutpool_common.store.records import expand, merge_fields
from rolloutpool_common.store.runs import paused_wait
from rolloutpool_common.store.waits import is_queued, own_wait, stage_waits


async def outside_result(
    connection: Connection,
    pool: PoolWaits,
    batch_id: str,
    index: int,
    status: RolloutStatus,
    reason: FinishReason,
    failure: Failure | None,
) -> RolloutResult | str:
    """Reads what is known of a rollout, and makes its result."""
    uid = keys.uid_of(batch_id, index)
    with store_errors():
        pipe = connection.redis.pipeline(transaction=False)
        pipe.hmget(keys.batch(batch_id), "shared", "run")
        pipe.hget(keys.batch(batch_id, "items"), str(index))
        pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "waits")
        pipe.hget(keys.batch(batch_id, "groups"), str(index))
        pipe.get(keys.rollout(uid, "ungraded"))
        (shared, run), overrides, (state, attempt, worker, note), group, ungraded = await pipe.execute()
    if shared is None or overrides is None:
        return "gone"
    if state is not None and RolloutStatus(state.decode()).terminal:
        return str(state.decode())
    if ungraded is not None and failure is not None:
        # Its conversation is complete, and what was sampled is good: only its stage has failed.
        return failed_in_stage(RolloutResult.model_validate_json(expand(ungraded)), failure)
    fields = merge_fields(shared, overrides, uid=uid)
    waited = None
    if failure is None:
        found = await pool.look() if is_queued(state) else None
        paused = await paused_wait(connection.redis, run)
        waited = wait_of(fields, state, attempt, note, found, time.time(), paused)
    return unsampled_result(
        batch_id,
        index,
        fields,
        group,
        attempt,
        worker,
        status=status,
        reason=reason,
        failure=failure,
        waited_for=waited,
    )


def failed_in_stage(result: RolloutResult, failure: Failure) -> RolloutResult:
    """Makes the result of a rollout whose stage has failed: with all that was sampled, and without a reward."""
    return result.model_copy(
        update={
            **{"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR, "failure": failure},
            **{"reward": None, "reward_parts": {}},
        }
    )


def wait_of(
    fields: dict[str, Any],
    state: bytes | None,
    attempt: bytes | None,
    note: bytes | None,
    pool: PoolState | None,
    now_s: float,
    paused: Waiting | None = None,
    *,
    stage: bytes | None = None,
) -> Waiting | None:
    """Says what a rollout that has not ended waits for."""
    noted = own_wait(note, attempt, now_s)
    if stage is not None:
        return noted or next(iter(stage_waits(1)), None)
    noted = noted or paused
    if noted is not None or pool is None or not is_queued(state):
        return noted
    name = fields.get("tokenizer_name")
    return next(iter(pool.waits([name] if name else [], needs=[needs] if (needs := needs_of(fields)) else [])), None)


def unsampled_result(
    batch_id: str,
    index: int,
    fields: dict[str, Any],
    group: bytes | None,
    attempt: bytes | None,
    worker: bytes | None,
    *,
    status: RolloutStatus,
    reason: FinishReason,
    failure: Failure | None = None,
    waited_for: Waiting | None = None,
) -> RolloutResult:
    """Makes the result of a rollout that is ended from outside, so it has no samples."""
    return RolloutResult(
        uid=keys.uid_of(batch_id, index),
        rollout_id=fields["rollout_id"],
        batch_id=batch_id,
        index=index,
        group=group.decode() if group is not None else None,
        labels=fields.get("labels", {}),
        metadata=fields["metadata"],
        status=status,
        finish_reason=reason,
        failure=failure,
        waited_for=waited_for,
        attempt=int(attempt or 0),
        worker=worker.decode() if worker is not None else None,
        spans=Spans(),
    )
