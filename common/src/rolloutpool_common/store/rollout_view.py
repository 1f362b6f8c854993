"""The state of one rollout, as its owner sees it."""

import orjson

from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.outside_ends import OpenRollout
from rolloutpool_common.store.pool_waits import PoolWaits
from rolloutpool_common.store.records import expand, merge_fields
from rolloutpool_common.store.waits import is_queued, run_wait, status_of


async def read_view(connection: Connection, pool: PoolWaits, uid: str, owner: str | None) -> RolloutView | None:
    """Reads a rollout's state, and its result once it has ended."""
    if (split := keys.split_uid(uid)) is None:
        return None
    batch_id, index = split
    with store_errors():
        pipe = connection.redis.pipeline(transaction=False)
        pipe.hmget(keys.batch(batch_id), "owner", "shared", "run")
        pipe.hget(keys.batch(batch_id, "items"), str(index))
        pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "turns", "waits", "stage")
        pipe.hget(keys.batch(batch_id, "groups"), str(index))
        pipe.get(keys.rollout(uid, "result"))
        # Last: were it read before the rest, the deletion could begin in between, and what has ended would look fresh.
        pipe.hexists(keys.batch(batch_id), "deleting")
        (owned_by, shared, run), own, states, group, result, deleting = await pipe.execute()
    state, attempt, worker, turns, note, stage = states
    if owned_by is None or owner not in (None, owned_by.decode()) or own is None or deleting:
        return None
    waiting = None
    if result is None:
        fields = merge_fields(shared, own, uid=uid)
        found = await pool.look() if is_queued(state) else None
        rollout = OpenRollout(batch_id, index, fields, group, state, attempt, worker, note, stage)
        waiting = rollout.wait(found, await run_wait(connection, run))
    return RolloutView(
        uid=uid,
        rollout_id=orjson.loads(own).get("rollout_id", uid),
        batch_id=batch_id,
        index=index,
        group=group.decode() if group is not None else None,
        status=status_of(state, stage),
        attempt=int(attempt or 0),
        worker=worker.decode() if worker is not None else None,
        turns=int(turns or 0),
        waiting=waiting,
        result=orjson.loads(expand(result)) if result is not None else None,
    )
