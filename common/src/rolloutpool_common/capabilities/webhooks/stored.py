"""Says what webhooks keep in Redis, and what the store does for them. Which results are due is in `pushes`."""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capabilities.webhooks import keys
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.capability import Counter, Encryption, Gauge, StoredCapability, StoreDoor

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import BatchRequest

HELD_SECONDS = 24 * 3600
"""How much longer a batch is kept for its pushes."""
PAGE = 1000
"""Entries of the list of pushes that were given up, per round trip."""


class Webhooks(StoredCapability):
    """Pushes of results, as the store sees them."""

    name = "webhooks"
    mark = "push"
    called = (("delivery", "callback_url"),)
    secret = (("delivery", "secret"),)
    batch_parts = ("undelivered",)
    gauges = (Gauge("pushes_pending", "Results that are due at a webhook, now or later.", keys.PUSH_DUE),)
    counters = (
        Counter(
            "push",
            "pushes",
            "Results that were pushed, given up, or cancelled before.",
            "outcome",
            ("dead", "delivered", "stopped"),
        ),
    )

    def asked(self, batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> Delivery | None:
        """Returns where the results of a batch are to be pushed."""
        return None if batch is None else batch.delivery

    def kept(self, asked: Delivery, secrets: Encryption) -> Mapping[str, bytes]:
        """It as JSON, with its secret encrypted."""
        kept = {**asked.model_dump(), "secret": secrets.encrypt(asked.secret)}
        # As `take_pushes.lua` looks for the URL in it.
        return {self.mark: json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()}

    def state(self, fields: Mapping[str, bytes]) -> dict[str, Any]:
        """How many pushes are in each state."""
        pushes = {name.removeprefix("push:"): int(n) for name, n in sorted(fields.items()) if name.startswith("push:")}
        return {"delivery": pushes}

    def forget(self, pipe: Any, uid: str) -> None:
        """Takes a rollout off the pushes."""
        pipe.zrem(keys.PUSH_DUE, uid)
        pipe.hdel(keys.PUSH_ATTEMPTS, uid)

    async def holds(self, door: StoreDoor, batch_id: str) -> bool:
        """Keeps it once, and for `HELD_SECONDS`, if pushes of it wait."""
        return bool(await door.script("hold_pushes", batch_id, HELD_SECONDS * 1000))

    async def dead_letters(self, door: StoreDoor, limit: int) -> dict[str, list[str]]:
        """Reads the uids of results whose push was given up."""
        # One stays on the list that was made due again, or whose batch was deleted; and one may be there twice. All of
        # it is read if need be: a hundred that are delivered by now would hide those before them.
        found: dict[str, None] = {}
        for start in count(0, PAGE):
            page = [uid.decode() for uid in await door.redis.lrange(keys.PUSH_DEAD, start, start + PAGE - 1)]
            pipe = door.redis.pipeline(transaction=False)
            for uid in page:
                batch_id, _, index = uid.rpartition("-")
                pipe.sismember(keys.undelivered(batch_id), index)
                # A worker of 0.2 counts one that it gives up, and does not note which.
                pipe.scard(keys.undelivered(batch_id))
                pipe.hget(f"rp:batch:{batch_id}", "push:dead")
                pipe.zscore(keys.PUSH_DUE, uid)
            said = iter(await pipe.execute() if page else [])
            for uid, there, noted, counted, due in zip(page, said, said, said, said, strict=True):
                if there or (int(counted or 0) > noted and due is None):
                    found[uid] = None
            if len(page) < PAGE or len(found) >= limit:
                break
        return {"pushes": list(found)[:limit]}
