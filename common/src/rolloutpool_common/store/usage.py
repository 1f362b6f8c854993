"""Usage: what each owner holds of the pool, what is reserved for it, and who is let in where that is short.

What is accepted must also be able to end. So Redis keeps room free for the journal and the result of each open rollout:
its reserve. How much that is, is learnt for each owner and run, and no team pays for the rollouts of another one:

1. A commit counts what its owner holds: open rollouts, weights of batches, bytes, and the reserves of its rollouts
   (`rp:usage`, by `commit.lua`). It refuses what is past a quota, or past the owner's share where room is short.
2. A rollout that completes teaches its owner and run what a rollout takes (`learn` in `_usage.lua`); the reserve stands
   above 95 of 100. A new run begins with what the API's settings say. What is learnt is forgotten a day after
   the run's last rollout.
3. The end of a rollout, and the deletion of a batch, take out what was counted, in the same scripts. Those of an older
   release do not. So each new leader counts anew what is there, and does it again every hour (`Usage.recount`).
4. Where the rollouts of a run become larger than those that taught its reserve, more was promised than there is. Then
   the leader, once a second, says how many rollouts may run at a time (`Usage.balance`, `rp:room`), and `reserve.lua`
   publishes no more. The owners who hold most wait first: what the others were promised stays free for them. All that
   was accepted waits in its outbox and is not lost.

Example: Redis has 2 GB. 25,000 rollouts of one owner whose trainer is down reserve all of it. Another owner submits;
its share is 1 GB, so it is let in. From now on the first one is refused, and it alone.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.redis_settings import read_info

_log = logging.getLogger(__name__)

RECOUNTED = 20_000
"""Batches of an owner that are counted anew: 70 ms of Redis' time. Protocol v1 makes a batch of each rollout."""

ROOM_SECONDS = 10
"""What the leader has said counts for so long; a new leader is there before."""
KEPT_FOR_OTHERS = 0.15
"""Share of Redis' memory that the owners who hold most leave free, where more was promised than there is."""


class OwnerUsage(NamedTuple):
    """Holds what one owner holds."""

    open: int = 0
    weight: int = 0
    """Sum of the weights of its batches that have not ended."""
    bytes: int = 0
    """In Redis, until its batches are deleted."""
    reserved: int = 0
    """Bytes that its open rollouts may still take."""

    @property
    def memory(self) -> int:
        """Bytes that it has or will have."""
        return self.bytes + self.reserved


@dataclass(frozen=True)
class PoolUsage:
    """Holds what all owners hold, and how full Redis is."""

    open: int
    """Rollouts; more than those of the owners where an older release has accepted some."""
    total: OwnerUsage
    owners: Mapping[str, OwnerUsage] = field(default_factory=dict)
    slots: int | None = None
    """Of all workers; None where no leader has said it."""

    def needs(self, new_bytes: int) -> int:
        """Adds up the bytes that open rollouts may still take; `new_bytes` are those of a rollout of a new run.

        What runs may be larger than what its run has taught, so as many rollouts as there are slots count as new.
        """
        counted = self.total.open
        average = self.total.reserved / counted if counted else 0.0
        places = self.open if self.slots is None else min(self.open, self.slots)
        return (
            self.total.reserved
            + max(self.open - counted, 0) * new_bytes
            + math.ceil(places * max(new_bytes - average, 0) if counted else 0)
        )


class Room(NamedTuple):
    """How many rollouts may be published or run at a time."""

    all: int
    largest: int
    """While so many are, the owners of `held` get no more."""
    held: tuple[str, ...]
    """Those who hold as much as the average owner, or more."""


def room_of(usage: PoolUsage, *, memory: int, limit: int, new_bytes: int) -> Room | None:
    """Says how many rollouts may run at a time, so that Redis keeps room for all of them to end."""
    if not limit or not new_bytes or not usage.owners or memory + usage.needs(new_bytes) <= limit:
        return None
    mean = sum(owner.memory for owner in usage.owners.values()) / len(usage.owners)
    held = tuple(sorted(name for name, owner in usage.owners.items() if owner.memory >= mean))
    others = sum(owner.reserved for name, owner in usage.owners.items() if name not in held)
    kept = max(math.ceil(KEPT_FOR_OTHERS * limit), others) if len(usage.owners) > 1 else 0
    free, each = limit - memory, max(new_bytes, math.ceil(usage.total.reserved / max(usage.total.open, 1)))
    return Room(max(free // each, 0), max((free - kept) // each, 0), held)


class Usage:
    """The usage of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._written: tuple[dict[str, int], float] = ({}, -math.inf)
        """What `set_room` wrote last, and when."""
        self._narrow = False
        """Whether the last look found too little room; told once in the log."""

    async def read(self) -> PoolUsage:
        """Reads all of it in one round trip."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hgetall(keys.USAGE)
            pipe.get(keys.OPEN)
            pipe.hget(keys.ROOM, "slots")
            fields, still_open, slots = await pipe.execute()
        return usage_of(fields, int(still_open or 0), slots)

    async def recount(self) -> list[str]:
        """Counts anew what each owner holds that has no more than `RECOUNTED` batches."""
        owners = (await self.read()).owners
        wrong = [owner for owner in owners if await self._connection.script("recount_usage", owner, RECOUNTED)]
        if wrong:
            _log.warning("what %s hold was counted anew: an older release has ended or deleted some", ", ".join(wrong))
        return wrong

    async def balance(self, slots: int, new_bytes: int) -> Room | None:
        """Says for the next seconds how many rollouts may run at a time; by the process that reconciles."""
        usage = await self.read()
        with store_errors():
            memory = await read_info(self._redis, "memory")
        room = room_of(
            PoolUsage(usage.open, usage.total, usage.owners, slots),
            memory=int(memory.get("used_memory", 0)),
            limit=int(memory.get("maxmemory", 0)),
            new_bytes=new_bytes,
        )
        await self.set_room(slots, room)
        if (room is not None) is not self._narrow:
            self._narrow = room is not None
            if room is not None:
                _log.warning(
                    "Redis has too little room for all that was accepted: at most %d rollouts run at a time, and those "
                    "of %s wait from %d on",
                    *(room.all, ", ".join(room.held), room.largest),
                )
            else:
                _log.warning("Redis has room again for all that was accepted")
        return room

    async def set_room(self, slots: int, room: Room | None) -> None:
        """Writes what `reserve.lua` and `commit.lua` go by."""
        fields: dict[str, int] = {"slots": slots}
        if room is not None:
            fields |= {"all": room.all, "largest": room.largest, **{f"held:{owner}": 1 for owner in room.held}}
        # The same is written again before it expires, and at once by another leader, who has written nothing yet.
        before, at = self._written
        if fields == before and time.monotonic() < at + ROOM_SECONDS / 4:
            return
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.delete(keys.ROOM)
            pipe.hset(keys.ROOM, mapping=fields)
            pipe.expire(keys.ROOM, ROOM_SECONDS)
            await pipe.execute()
        self._written = fields, time.monotonic()


def usage_of(fields: Mapping[bytes, bytes], still_open: int, slots: bytes | None) -> PoolUsage:
    """Makes it from what Redis returns."""
    found: dict[str, dict[str, int]] = {}
    for name, n in fields.items():
        what, _, owner = name.decode().partition(":")
        if what in OwnerUsage._fields:
            found.setdefault(owner, {})[what] = int(n)
    owners = {owner: OwnerUsage(**some) for owner, some in found.items()}
    total = owners.pop("", OwnerUsage())
    return PoolUsage(still_open, total, owners, None if slots is None else int(slots))
