"""The outbox: what is accepted and not yet in the broker.

Invariant: a queued rollout is in its batch's outbox or published; a crash between the two leaves it published, and
what is published but lost is put back (`lost`). No more tickets of a priority class are published than live workers
need, and runs take turns filling that window by weight, so that a large batch cannot stand in front of a small one.
"""

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named, now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import Ticket
from rolloutpool_common.store.workers import DEAD_AFTER_SECONDS

__all__ = ["PER_WORKER", "Outbox"]

PER_WORKER = 128
"""Published and unclaimed tickets per priority class and live worker. A worker takes some hundred tickets a second and
refills twenty times a second; more would only stand in front of who comes later."""


class Outbox:
    """The outboxes in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def reserve(self, priority: Priority, limit: int) -> list[Ticket]:
        """Takes up to `limit` tickets that the window has room for; the caller publishes them now."""
        answer = named(
            await self._connection.script("reserve", priority, limit, PER_WORKER, int(DEAD_AFTER_SECONDS * 1000))
        )
        published_ms = float(answer["now_ms"])
        return [
            Ticket(batch_id.decode(), int(index), group.decode(), published_ms)
            for batch_id, index, group in answer["tickets"]
        ]

    async def has_more(self, priority: Priority) -> bool:
        """Whether any outbox still has something."""
        with store_errors():
            return bool(await self._redis.exists(keys.runs(priority)))

    async def lost(self, priority: Priority, before_ms: float, limit: int = 1000) -> int:
        """Puts tickets back that were published before `before_ms` and never claimed; returns how many.

        A ticket that was not lost, but slow, is then published twice; the second finds the rollout claimed.
        """
        with store_errors():
            entries = await self._redis.zrangebyscore(
                keys.published(priority), "-inf", f"({before_ms:.0f}", start=0, num=limit, withscores=True
            )
        moved = 0
        for raw, score in entries:
            split = keys.split_uid(raw.decode())
            if split is not None:
                moved += await self._connection.script("republish", *split, priority, f"{score:.0f}")
        return moved

    async def now_ms(self) -> float:
        """Redis' clock, the one that dates published tickets."""
        with store_errors():
            return await now_ms(self._redis)

    async def queue_depths(self) -> dict[Priority, Queue]:
        """How many rollouts wait, accepted and published, per priority class."""
        depths = {}
        with store_errors():
            for priority in Priority:
                pipe = self._redis.pipeline(transaction=False)
                for run in await self._redis.lrange(keys.runs(priority), 0, -1):
                    for batch_id in await self._redis.lrange(keys.run(priority, run.decode()), 0, -1):
                        pipe.llen(keys.batch(batch_id.decode(), "outbox"))
                pipe.zcard(keys.published(priority))
                *waiting, published = await pipe.execute()
                depths[priority] = Queue(outbox=sum(waiting), published=published)
        return depths
