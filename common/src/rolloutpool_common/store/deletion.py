"""Deleting an ended batch, with everything that Redis holds of it.

1. The batch is marked: from now on its pages are refused, because a page of what is left would look like all of it.
2. Its rollouts go first, `CHUNK` at a time: their hashes, results, histories and names, and what capabilities keep.
3. Then what its owner held with it (`usage.py`), and its idempotency key.
4. The batch's own keys go last, together with its places in the lists of batches. If this process dies before that, the
   reconciler deletes the rest in its next round, because the batch still stands in `rp:ended`.
"""

import orjson

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import BatchStillRunning, store_errors

CHUNK = 500
"""Rollouts per round trip."""
ROLLOUT_PARTS = ("", "journal", "result", "evidence", "history", "ungraded", "attachments")
CAPABILITY_PARTS = tuple(part for capability in CAPABILITIES for part in capability.rollout_parts)
BATCH_PARTS = (
    "",
    "items",
    "groups",
    "group_counts",
    "deadlines",
    "idempotent",
    "names",
    "rows",
    "trunk",
    "outbox",
    "needs",
    "lanes",
    "done",
    *(part for capability in CAPABILITIES for part in capability.batch_parts),
)


async def delete_batch(connection: Connection, batch_id: str) -> None:
    """Deletes a batch; does nothing where it is gone already."""
    redis = connection.redis
    with store_errors():
        total, finished, owner = await redis.hmget(keys.batch(batch_id), "total", "finished_ms", "owner")
        if total is None:
            await redis.zrem(keys.ENDED, batch_id)
            return
        if finished is None:
            raise BatchStillRunning(f"batch {batch_id}: {BatchStillRunning.__doc__}")
        mark = redis.pipeline(transaction=True)
        mark.hset(keys.batch(batch_id), "deleting", 1)
        # Should this process die, the reconciler goes on at once, and not when the retention is over.
        mark.zadd(keys.ENDED, {batch_id: 1})
        await mark.execute()
        for start in range(0, int(total), CHUNK):
            await _delete_rollouts(connection, batch_id, range(start, min(start + CHUNK, int(total))), owner.decode())
        await connection.script("forget_usage", batch_id)
        noted = [name for name in await redis.hkeys(keys.batch(batch_id)) if name.startswith(b"made_with:")]
        pipe = redis.pipeline(transaction=True)
        for name in noted:
            # What 0.2 has noted with its batches, and nobody reads any more.
            pipe.unlink(f"{keys.PREFIX}{name.decode()}", f"{keys.PREFIX}{name.decode()}:{owner.decode()}")
        pipe.unlink(*(keys.batch(batch_id, part) for part in BATCH_PARTS))
        # Most batches stand in two of these four lists.
        for v1 in (False, True):
            for whose in (None, owner.decode()):
                pipe.zrem(keys.batches(whose, v1=v1), batch_id)
        pipe.zrem(keys.ENDED, batch_id)
        await pipe.execute()


async def _delete_rollouts(connection: Connection, batch_id: str, indexes: range, owner: str) -> None:
    redis, names = connection.redis, list[str]()
    overrides = await redis.hmget(keys.batch(batch_id, "items"), [str(i) for i in indexes])
    pipe = redis.pipeline(transaction=False)
    for index, raw in zip(indexes, overrides, strict=True):
        uid = keys.uid_of(batch_id, index)
        pipe.unlink(*(keys.rollout(uid, part) for part in (*ROLLOUT_PARTS, *CAPABILITY_PARTS)))
        for capability in CAPABILITIES:
            capability.forget(pipe, uid)
        name = orjson.loads(raw).get("rollout_id") if raw is not None else None
        if name is not None:
            names += [name, uid]
    await pipe.execute()
    if names:
        await connection.script("forget_names", owner, *names)
