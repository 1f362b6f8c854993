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
from typing import Literal, NamedTuple

import orjson

from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.errors import store_errors

LOOK_AT = 500
"""Due pushes that one look of `take` sees: two milliseconds of Redis' time where none may go to its receiver now."""


class DuePush(NamedTuple):
    """A result that has to be pushed."""

    uid: str
    attempt: int
    """From 1."""
    receiver: str
    """Owner, blank, and the webhook without its query; the second is empty where the batch has none any more."""
    failures: int
    """How often in a row its receiver was down."""


class Pushes:
    """The pushes of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection = store.connection
        self._redis = store.connection.redis

    async def take(
        self,
        limit: int,
        *,
        lease_s: float,
        share: int | None = None,
        owner_share: int | None = None,
        busy: Mapping[str, int] | None = None,
    ) -> list[DuePush]:
        """Leases due pushes, the earliest first."""
        under_way = [part for receiver, n in (busy or {}).items() for part in (receiver, n)]
        shares = [limit if most is None else most for most in (share, owner_share)]
        taken = await self._connection.script("take_pushes", limit, int(lease_s * 1000), *shares, LOOK_AT, *under_way)
        return [DuePush(uid.decode(), attempt, receiver.decode(), n) for uid, attempt, receiver, n in taken]

    async def settle(
        self, push: DuePush, what: Literal["delivered", "dead", "retry", "down"], *, retry_in_s: float = 0.0
    ) -> None:
        """Notes what became of a leased push."""
        split = keys.split_uid(push.uid)
        batch_id = split[0] if split else ""
        pause_ms = int(retry_in_s * 1000)
        await self._connection.script("settle_push", batch_id, push.uid, what, push.receiver, push.failures, pause_ms)

    async def retry(self, batch_id: str, total: int) -> int:
        """Makes all pushes of a batch due now, those that were given up too."""
        return sum(
            [
                int(await self._connection.script("retry_pushes", batch_id, first, min(first + LOOK_AT, total) - 1))
                for first in range(0, total, LOOK_AT)
            ]
        )

    async def target(self, batch_id: str) -> Delivery | None:
        """Reads where a batch's results are pushed, with the secret in plain text; raises `SecretUnreadable`."""
        with store_errors():
            raw = await self._redis.hget(keys.batch(batch_id), "push")
        if raw is None:
            return None
        stored = orjson.loads(raw)
        return Delivery.model_validate({**stored, "secret": self._store.secrets.decrypt(stored["secret"])})
