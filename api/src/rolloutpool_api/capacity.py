"""RecentCapacity: how full the pool is, as of a moment ago, so that not each of many submits has to ask Redis.

1. What was read counts for `FRESH_SECONDS`. Submits that come while Redis is asked wait for the same answer.
2. The bytes that this process has accepted since then are added to what was read.
3. What other API processes accepted since then is not known. What is counted (open rollouts, reserves, quotas) is exact
   all the same, because the commit looks at it (`commit.lua`). Only the memory that Redis uses may be older; the limit
   on that keeps far more room than 50 ms of submits take.
"""

import asyncio
import math
import time

from rolloutpool_common.store import Store
from rolloutpool_common.store.records import Capacity

FRESH_SECONDS = 0.05


class RecentCapacity:
    """The capacity of one store, for one event loop."""

    def __init__(self, store: Store) -> None:
        """Prepares without asking."""
        self._store = store
        self._asking: asyncio.Task[None] | None = None
        self._read = Capacity(0, 0, 0)
        self._read_at = -math.inf
        self._accepted_bytes = 0

    async def look(self) -> Capacity:
        """Returns the capacity."""
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
                self._asking.add_done_callback(self._asked)
            # All that wait get the same answer, or the same error. None of them ends the question by going away.
            await asyncio.shield(self._asking)
        return self._read._replace(used_bytes=self._read.used_bytes + self._accepted_bytes)

    async def _ask(self) -> None:
        # Before the answer: what is accepted meanwhile may be in it or not, and is better counted twice.
        self._accepted_bytes = 0
        self._read = await self._store.batches.capacity()
        self._read_at = time.monotonic()

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        # Marks the error as seen, also where all that waited for it have gone.
        if not asking.cancelled():
            asking.exception()

    def note_accepted(self, size: int) -> None:
        """Counts the bytes that this process has just committed."""
        self._accepted_bytes += size
