"""The history of a rollout: what happened to it between its acceptance and now.

Only what would be overwritten is stored: when a rollout is queued again, `release.lua` appends an entry of its attempt
to a short list. A rollout that one worker runs to its end, as nearly all do, costs nothing: its attempt is in its hash.
"""

import orjson

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.history import AttemptHistory, RolloutHistory
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.waits import status_of


class Histories:
    """The histories of the rollouts in one store."""

    def __init__(self, connection: Connection) -> None:
        self._redis = connection.redis

    async def read(self, uid: str, owner: str | None) -> RolloutHistory | None:
        """Reads the history of a rollout."""
        split = keys.split_uid(uid)
        # `b…-00` would find the batch's fields of `b…-0`, and no rollout.
        if split is None or keys.uid_of(*split) != uid:
            return None
        batch_id, index = split
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hmget(keys.batch(batch_id), "owner", "created_ms")
            pipe.hget(keys.batch(batch_id, "items"), str(index))
            pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "turns", "claimed", "ended", "stage")
            pipe.lrange(keys.rollout(uid, "history"), 0, -1)
            pipe.zscore(keys.DELAYED, uid)
            (
                (owned_by, created),
                own,
                (status, attempt, worker, turns, claimed, ended, stage),
                past,
                delayed,
            ) = await pipe.execute()
            now = int(await now_ms(self._redis))
        if owned_by is None or owner not in (None, owned_by.decode()) or own is None:
            return None
        state = status_of(status, stage)
        attempts = [AttemptHistory(outcome="requeued", **orjson.loads(entry)) for entry in past]
        # An attempt that was queued again has its entry. A rollout that was ended in the queue has no further one.
        if state is not RolloutStatus.QUEUED and worker is not None:
            attempts.append(
                AttemptHistory(
                    attempt=int(attempt),
                    worker=worker.decode(),
                    claimed_ms=int(claimed),
                    ended_ms=int(ended) if ended else None,
                    outcome=state,
                    turns=int(turns or 0),
                )
            )
        return RolloutHistory(
            uid=uid,
            rollout_id=orjson.loads(own).get("rollout_id", uid),
            status=state,
            accepted_ms=int(created),
            now_ms=now,
            ended_ms=int(ended) if ended else None,
            not_before_ms=None if delayed is None else int(delayed),
            attempts=attempts,
        )
