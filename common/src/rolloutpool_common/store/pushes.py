"""Pushes: results that are due at a trainer's webhook.

1. The end of a rollout whose batch has a webhook makes a push due, in the same script that stores the result.
2. A worker leases due pushes (`take`): no other worker gets them until the lease ends. Of those that go to one receiver
   (a webhook of one owner, without its query) it gets only a share, and of those of one owner as well. So one that
   hangs can't occupy the whole worker, nor hold up another path of its host.
3. It settles each: delivered, given up, or due again later. Where the receiver is down, one pause holds for all that it
   is to get; then one push tries it. So a receiver that was away for hours gets everything soon after it is back.
4. If the worker dies, the lease ends and the push is due again. The receiver may get it twice, and drops the repeat by
   its `webhook-id`.
5. Pushes are tried as long as their batch is kept. A batch that is due to be deleted while some wait is kept for a day
   more.
"""

from collections.abc import Mapping
from typing import Literal

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import DuePush

__all__ = ["Pushes"]

LOOK_AT = 500
"""Due pushes that one look of `take` sees: two milliseconds of Redis' time where none may go to its receiver now."""
HELD_SECONDS = 24 * 3600
"""How much longer a batch is kept for its pushes."""


class Pushes:
    """The pushes of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def take(
        self,
        limit: int,
        *,
        lease_s: float,
        share: int | None = None,
        owner_share: int | None = None,
        busy: Mapping[str, int] | None = None,
    ) -> list[DuePush]:
        """Leases due pushes, the earliest first.

        Args:
            limit: Most pushes.
            lease_s: Seconds of the lease.
            share: Most pushes for one receiver, those in `busy` included; by default all may go to one.
            owner_share: Likewise for all receivers of one owner.
            busy: How many pushes this worker makes already, by receiver.
        """
        under_way = [part for receiver, n in (busy or {}).items() for part in (receiver, n)]
        shares = [limit if most is None else most for most in (share, owner_share)]
        taken = await self._connection.script("take_pushes", limit, int(lease_s * 1000), *shares, LOOK_AT, *under_way)
        return [DuePush(uid.decode(), attempt, receiver.decode(), n) for uid, attempt, receiver, n in taken]

    async def settle(
        self, push: DuePush, what: Literal["delivered", "dead", "retry", "down"], *, retry_in_s: float = 0.0
    ) -> None:
        """Notes what became of a leased push.

        Args:
            push: As it was leased.
            what: `dead` says that the push is given up. `retry` makes it due again, `down` also all others for its
                receiver.
            retry_in_s: Seconds until then; of no effect for the others.
        """
        split = keys.split_uid(push.uid)
        batch_id = split[0] if split else ""
        pause_ms = int(retry_in_s * 1000)
        await self._connection.script("settle_push", batch_id, push.uid, what, push.receiver, push.failures, pause_ms)

    async def retry(self, batch_id: str, total: int) -> int:
        """Makes all pushes of a batch due now, those that were given up too.

        Args:
            batch_id: The batch.
            total: How many rollouts it has.

        Returns:
            How many pushes are due.
        """
        return sum(
            [
                int(await self._connection.script("retry_pushes", batch_id, first, min(first + LOOK_AT, total) - 1))
                for first in range(0, total, LOOK_AT)
            ]
        )

    async def hold(self, batch_id: str) -> bool:
        """Keeps a batch that is due to be deleted, once and for `HELD_SECONDS`, if pushes of it wait."""
        return bool(await self._connection.script("hold_pushes", batch_id, HELD_SECONDS * 1000))

    async def dead(self, limit: int = 100) -> list[str]:
        """Returns the uids of results whose push was given up, newest first."""
        with store_errors():
            uids = [uid.decode() for uid in await self._redis.lrange(keys.PUSH_DEAD, 0, limit - 1)]
            # Those that were made due again stay on this list.
            pipe = self._redis.pipeline(transaction=False)
            for uid in uids:
                pipe.zscore(keys.PUSH_DUE, uid)
            return [uid for uid, due in zip(uids, await pipe.execute() if uids else [], strict=True) if due is None]
