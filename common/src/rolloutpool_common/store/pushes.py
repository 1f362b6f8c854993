"""Pushes: results that are due at a trainer's webhook.

1. The end of a rollout whose batch has a webhook makes a push due, in the same script that stores the result.
2. A worker leases due pushes (`take`): no other worker gets them until the lease ends. Of those that go to one receiver
   (the host and port of a webhook) it gets only a share, so one that hangs can't occupy the whole worker.
3. It settles each: delivered, dead (given up), or due again later.
4. If the worker dies, the lease ends and the push is due again. The receiver may get it twice, and drops the repeat by
   its `webhook-id`.
"""

from collections.abc import Mapping
from typing import Literal

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import DuePush

__all__ = ["Pushes"]

LOOK_AT = 500
"""Due pushes that one `take` looks at: two milliseconds of Redis' time where none may go to its receiver now."""


class Pushes:
    """The pushes of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def take(
        self, limit: int, *, lease_s: float, share: int | None = None, busy: Mapping[str, int] | None = None
    ) -> list[DuePush]:
        """Leases due pushes, the earliest first.

        Args:
            limit: Most pushes.
            lease_s: Seconds of the lease.
            share: Most pushes for one receiver, those in `busy` included; by default all may go to one.
            busy: How many pushes this worker makes already, by receiver.
        """
        under_way = [part for receiver, n in (busy or {}).items() for part in (receiver, n)]
        taken = await self._connection.script(
            "take_pushes", limit, int(lease_s * 1000), limit if share is None else share, LOOK_AT, *under_way
        )
        return [DuePush(uid.decode(), attempt, receiver.decode()) for uid, attempt, receiver in taken]

    async def settle(self, uid: str, what: Literal["delivered", "dead", "retry"], *, retry_in_s: float = 0.0) -> None:
        """Notes what became of a leased push.

        Args:
            uid: The rollout.
            what: `dead` says that the push is given up; `retry` makes it due again.
            retry_in_s: Seconds until then; of no effect for the others.
        """
        split = keys.split_uid(uid)
        batch_id = split[0] if split else ""
        await self._connection.script("settle_push", batch_id, uid, what, int(retry_in_s * 1000))

    async def dead(self, limit: int = 100) -> list[str]:
        """Returns the uids of results whose push was given up, newest first."""
        with store_errors():
            return [uid.decode() for uid in await self._redis.lrange(keys.PUSH_DEAD, 0, limit - 1)]
