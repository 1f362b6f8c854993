"""The outbox: rollouts that are accepted and not yet in the broker, and the window that keeps the broker's queue short.

1. A commit puts all rollouts of a batch into the batch's outbox. Committing and publishing are two steps, so a crash
   between them loses nothing.
2. `reserve` moves some of them from the outboxes to `rp:published`, and its caller publishes them to the broker now.
   It runs after each submit, after each claim that leaves room, and once a second in the API.
3. At most `PER_WORKER` tickets per live worker are published and unclaimed in each priority class: the window. Runs
   take turns in filling it, by weight (`reserve.lua`), so that a large batch cannot hold up a small one.
4. A claim removes its ticket from `rp:published`, which makes room for another.
5. If a process dies between `reserve` and publishing, or the broker loses messages, tickets stay in `rp:published` that
   no queue holds. They are older than everything in the queue; `lost` puts them back into their outbox.

A paused run gives nothing: it takes no turns until it is resumed.

Where workers are of several builds, rollouts that only some can run wait in lanes of their own (`lanes.py`), and their
tickets go to queues that only suited workers read. `lost` looks at each queue by itself: what is older than the oldest
message of one queue may still wait in another.

Invariant: a queued rollout is in its batch's outbox (one of its lanes), in `rp:published`, in `rp:delayed`, or in
`rp:suspects`.
"""

import asyncio
from typing import NamedTuple

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import keys
from rolloutpool_common.store.announcements import LATE_SECONDS
from rolloutpool_common.store.answers import named, now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.lanes import lanes_of
from rolloutpool_common.store.records import Ticket

PER_WORKER = 128
"""The window: published and unclaimed tickets per priority class and live worker. A worker takes some hundred tickets
a second and refills twenty times a second. More would only hold up later submits."""


class Reserved(NamedTuple):
    """Holds what was taken out of the outboxes of one priority class, to be published."""

    priority: Priority
    tickets: list[Ticket]
    more_waiting: bool
    """Whether the outboxes hold more."""
    open: int
    """Rollouts of the whole pool that have not ended; 0 where nothing waited."""


class Outbox:
    """The outboxes in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def reserve(self, priority: Priority, limit: int) -> list[Ticket]:
        """Takes tickets for which the window has room; the caller must publish them now."""
        return (await self._reserve(priority, limit)).tickets

    async def reserve_all(self, limit: int) -> list[Reserved]:
        """Does as `reserve` for every class, in one round trip; in their order, also those without tickets."""
        return await asyncio.gather(*(self._reserve(priority, limit) for priority in Priority))

    async def _reserve(self, priority: Priority, limit: int) -> Reserved:
        answer = named(await self._connection.script("reserve", priority, limit, PER_WORKER, int(LATE_SECONDS * 1000)))
        published_ms = float(answer["now_ms"])
        tickets = [
            Ticket(batch_id.decode(), int(index), group.decode(), published_ms, int(batch_size), offer.decode())
            for batch_id, index, group, batch_size, offer in answer["tickets"]
        ]
        return Reserved(priority, tickets, bool(answer["more_waiting"]), answer["open"])

    async def any_published(self) -> bool:
        """Tells whether any ticket is published and not claimed, or was routed to the queue of an offer."""
        counts = await asyncio.gather(
            *(self._connection.command("ZCARD", keys.published(priority)) for priority in Priority),
            self._connection.command("SCARD", keys.ROUTES),
        )
        return any(counts)

    async def lost(self, priority: Priority, before_ms: float, limit: int = 1000, *, offer: str = "") -> int:
        """Puts tickets of one queue back into their outbox that were published before `before_ms` and never claimed.

        A ticket that was slow and not lost is then published twice. The second one finds the rollout claimed, and ends.
        """
        published = keys.published(priority)
        key = keys.routed(priority, offer) if offer else published
        elsewhere = {} if offer else await self._routed(priority)
        moved = start = 0
        while True:
            with store_errors():
                page = {"start": start, "num": limit, "withscores": True}
                found = await self._redis.zrangebyscore(key, "-inf", f"({before_ms:.0f}", **page)
            entries = [(raw, at) for raw, at in found if elsewhere.get(raw) != at]
            if entries or len(found) < limit:
                break
            start += limit
        for raw, score in entries:
            split = keys.split_uid(raw.decode())
            if split is not None:
                # The score goes along: the script leaves alone what was claimed or published again since then.
                moved += await self._connection.script("requeue", *split, published, f"{score:.0f}", "republished")
        return moved

    async def _routed(self, priority: Priority) -> dict[bytes, float]:
        """Returns the tickets that went to the queues of offers, and when."""
        found: dict[bytes, float] = {}
        for offer in await self.routes(priority):
            with store_errors():
                found.update(await self._redis.zrange(keys.routed(priority, offer), 0, -1, withscores=True))
        return found

    async def routes(self, priority: Priority) -> list[str]:
        """Returns the offers whose queues tickets of a class went to."""
        with store_errors():
            routes = await self._redis.smembers(keys.ROUTES)
        split = (route.decode().partition(":") for route in routes)
        return sorted(offer for of, _, offer in split if of == priority)

    async def now_ms(self) -> float:
        """Returns the time of Redis' clock, in milliseconds since 1970."""
        with store_errors():
            return await now_ms(self._redis)

    async def queue_depths(self) -> dict[Priority, Queue]:
        """Counts what waits in the outboxes and in the broker, per priority class."""
        depths = {}
        with store_errors():
            for priority in Priority:
                pipe = self._redis.pipeline(transaction=False)
                # A paused run stands in no list of runs.
                paused = await self._redis.zrange(keys.PAUSED, 0, -1)
                for lane in await lanes_of(self._redis, priority):
                    for run in [*await self._redis.lrange(keys.runs(lane), 0, -1), *paused]:
                        for batch_id in await self._redis.lrange(keys.run(lane, run.decode()), 0, -1):
                            pipe.llen(keys.outbox(batch_id.decode(), lane))
                pipe.zcard(keys.published(priority))
                *waiting, published = await pipe.execute()
                depths[priority] = Queue(outbox=sum(waiting), published=published)
        return depths
