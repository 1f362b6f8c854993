"""Cancelling a batch: every rollout of it that has not ended, in a second for 10,000 of them.

1. The batch is marked as cancelled, so that no worker gets a rollout of it any more, and noted as being cancelled. Its
   outbox is emptied. If this process dies on the way, the reconciler finds the note and cancels the rest.
2. The rollouts are ended `AT_ONCE` at a time, in `LANES` lanes: their states are read, their results are made here, and
   one script (`cancel.lua`) ends those that have not ended meanwhile.
3. The note is removed.

How many were cancelled is the difference of the batch's own counter, and no sum of answers: an answer can be lost, and
the reconciler may cancel a part of the same batch.
"""

import asyncio
from typing import Any

import orjson

from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.outside_ends import OpenRollout
from rolloutpool_common.store.pool_waits import PoolState, PoolWaits
from rolloutpool_common.store.records import compress, merge_fields
from rolloutpool_common.store.rows import row_of
from rolloutpool_common.store.waits import run_wait

AT_ONCE = 50
"""Rollouts per script. 50 take Redis 2 ms (at most 5, measured on two busy cores), in which it answers nothing else."""

LANES = 4
"""Scripts on their way at the same time. While Redis runs one, results for others are made here; and scripts that wait
together travel together, so that Redis writes to disk once for all of them."""
INTERRUPTED_AFTER_MS = 10_000
"""A cancellation that is older and not complete counts as interrupted. Usually one takes a second at most, and a
reconciler that joined it would only do the same work again."""

_STATE = ("status", "attempt", "worker", "waits")
"""What is read of each rollout, in the order in which an `OpenRollout` takes it."""


async def cancel_batch(
    connection: Connection,
    batch_id: str,
    cause: CancelCause = CancelCause.CALLER,
    *,
    waited_for: Waiting | None = None,
) -> int:
    """Cancels each rollout that has not ended, and tells capabilities of the others.

    Without `waited_for`, what the batch's run waits for now is said in the results.
    """
    redis = connection.redis
    with store_errors():
        total, shared, run = await redis.hmget(keys.batch(batch_id), "total", "shared", "run")
        if total is None:
            await redis.srem(keys.CANCELLING, batch_id)
            return 0
    stopped = waited_for or await run_wait(connection, run)
    before = await connection.script("begin_cancel", batch_id, cause)
    fields = orjson.loads(shared)
    pool = await PoolWaits(connection).look()
    # One iterator for all lanes: each takes the next rollouts as soon as it is free.
    starts = iter(range(0, int(total), AT_ONCE))

    async def cancel_next() -> None:
        for start in starts:
            indexes = range(start, min(start + AT_ONCE, int(total)))
            await _cancel_some(connection, batch_id, fields, indexes, pool, stopped)

    await asyncio.gather(*(cancel_next() for _ in range(LANES)))
    with store_errors():
        pipe = redis.pipeline(transaction=True)
        pipe.srem(keys.CANCELLING, batch_id)
        pipe.hget(keys.batch(batch_id), RolloutStatus.CANCELLED)
        _, after = await pipe.execute()
    # A Redis that was restarted meanwhile may have lost cancellations that came before.
    return max(int(after or 0) - int(before or 0), 0)


async def _cancel_some(
    connection: Connection,
    batch_id: str,
    shared: dict[str, Any],
    indexes: range,
    pool: PoolState,
    stopped: Waiting | None,
) -> None:
    states = await connection.script("read_rollouts", batch_id, len(_STATE), *_STATE, *indexes)
    with store_errors():
        pipe = connection.redis.pipeline(transaction=False)
        for part in ("items", "groups"):
            pipe.hmget(keys.batch(batch_id, part), [str(index) for index in indexes])
        items, groups = await pipe.execute()
    parts: list[int | bytes] = []
    for index, known, own, group in zip(indexes, states, items, groups, strict=True):
        status = known[0]
        ended = status is not None and RolloutStatus(status.decode()).terminal
        result = row = b""
        # A batch that was deleted meanwhile has no items any more.
        if not ended and own is not None:
            fields = merge_fields(shared, own, uid=keys.uid_of(batch_id, index))
            rollout = OpenRollout(batch_id, index, fields, group, *known)
            waited = rollout.wait(pool, stopped)
            cancelled = rollout.ended(RolloutEnd(RolloutStatus.CANCELLED, FinishReason.CANCELLED), waited)
            result, row = compress(cancelled.model_dump_json().encode()), row_of(cancelled)
        parts += [index, result, row]
    await connection.of_batch("cancel", batch_id, *parts)


async def interrupted(connection: Connection) -> list[str]:
    """Returns the batches whose cancellation has begun some time ago and is not complete."""
    redis = connection.redis
    with store_errors():
        batches = [batch_id.decode() for batch_id in await redis.smembers(keys.CANCELLING)]
        if not batches:
            return []
        pipe = redis.pipeline(transaction=False)
        for batch_id in batches:
            pipe.hget(keys.batch(batch_id), "cancelled_ms")
        begun = await pipe.execute()
        latest = await now_ms(redis) - INTERRUPTED_AFTER_MS
    return [batch_id for batch_id, at in zip(batches, begun, strict=True) if int(at or 0) <= latest]
