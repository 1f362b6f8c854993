"""Carries doubts between this process and Redis, so that a doubt holds in all workers (`common/rendering/doubts.py`).

Each beat's answer says how many shapes are doubted. Only where that number has changed, Redis was started again, or
something was doubted here, both sides tell each other all that they know. So a beat costs nothing more, and a doubt
that Redis forgot with its last second is told again.
"""

import time

from rolloutpool_common.rendering.doubts import Doubts
from rolloutpool_common.store.doubts import DoubtedShapes


class SharedDoubts:
    """The doubts of one process, and those of the pool."""

    def __init__(self, doubts: Doubts, shared: DoubtedShapes, worker_id: str) -> None:
        self._doubts = doubts
        self._shared = shared
        self._worker_id = worker_id
        self._settled: tuple[int, int, int] | None = None
        """The epoch and both numbers of doubts at the last exchange."""

    async def share(self, epoch: int, doubted: int) -> None:
        """Exchanges doubts where there is something new."""
        now = epoch, doubted, len(self._doubts.found)
        if now != self._settled:
            await self.exchange()
            self._settled = now

    async def exchange(self) -> None:
        """Reads what the pool doubts, and writes what was doubted or used here; raises `StoreError`."""
        self._doubts.hear(shape.name for shape in await self._shared.listed())
        if self._doubts.found:
            now = time.monotonic()
            # A copy: a thread that renders may find something meanwhile.
            found = list(self._doubts.found.items())
            await self._shared.add(self._worker_id, {name: now - equal_at for name, equal_at in found})
