"""What queued rollouts wait for that no worker can note: a worker, a tokenizer, a free slot.

Nothing is written for this. The workers' beats say all of it, so it is read with them when someone asks about a batch
with queued rollouts, at most once a second in each process.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.protocol.workers import Worker, WorkerRole
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.workers import Workers

__all__ = ["PoolState", "PoolWaits"]

LOOK_SECONDS = 1.0
_NAMED = 3
"""Tokenizers that a message names."""


@dataclass(frozen=True)
class PoolState:
    """The shared workers, as their last beats show them."""

    workers: tuple[Worker, ...]

    def waits(self, tokenizers: Collection[str], queued: int = 1) -> list[Waiting]:
        """Says what queued rollouts wait for.

        Args:
            tokenizers: Those that the rollouts need, as workers name them.
            queued: How many rollouts are queued.

        Returns:
            One entry for each cause; none where a worker could take them at once.
        """
        taking = [worker for worker in self.workers if worker.alive and not worker.draining]
        if not taking:
            shown = "all workers shut down" if self.workers else "no worker is alive"
            return [_entry(WaitsFor.WORKER, f"{shown}; start one with `rolloutpool worker`", queued)]
        found = []
        wanted = sorted({name for worker in taking for name in worker.loading if name in tokenizers})
        if wanted:
            n = sum(any(name in tokenizers for name in worker.loading) for worker in taking)
            names = ", ".join(wanted[:_NAMED])[:500]
            found.append(_entry(WaitsFor.TOKENIZER, f"{n} of {len(taking)} workers load {names}", queued))
        if all(worker.running >= worker.slots for worker in taking):
            slots = sum(worker.slots for worker in taking)
            found.append(_entry(WaitsFor.SLOT, f"all {slots} slots of {len(taking)} workers are taken", queued))
        return found


class PoolWaits:
    """Reads the workers, and remembers for a second what it read."""

    def __init__(self, connection: Connection) -> None:
        self._workers = Workers(connection)
        self._state = PoolState(())
        self._read_at = float("-inf")

    async def look(self) -> PoolState:
        """Returns the workers' state, not older than `LOOK_SECONDS`."""
        now = time.monotonic()
        if now >= self._read_at + LOOK_SECONDS:
            known = await self._workers.known()
            self._state = PoolState(tuple(worker for worker in known if worker.role is WorkerRole.SHARED))
            self._read_at = now
        return self._state


def _entry(waits_for: WaitsFor, message: str, queued: int) -> Waiting:
    return Waiting(waits_for=waits_for, message=message, rollouts=queued)
