"""Says what queued rollouts wait for that no worker can note: a worker, one that is suited, a tokenizer, a free slot.

Nothing is written for this. The workers' beats say all of it, so it is read with them when someone asks about a batch
with queued rollouts, at most once a second in each process.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from rolloutpool_common.protocol.offers import RELEASE, missing, shown
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.protocol.workers import Worker, WorkerRole
from rolloutpool_common.store.announcements import offer_of
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.workers import Workers

LOOK_SECONDS = 1.0
_NAMED = 3
"""Tokenizers that a message names."""


@dataclass(frozen=True)
class PoolState:
    """The shared workers, as their last beats show them."""

    workers: tuple[Worker, ...]
    unreadable: int = 0
    """Workers whose announcement cannot be read."""

    def waits(self, tokenizers: Collection[str], queued: int = 1, needs: Sequence[Sequence[str]] = ()) -> list[Waiting]:
        """Says what queued rollouts wait for."""
        taking = [worker for worker in self.workers if worker.alive and not worker.draining]
        if not taking:
            why = "all workers shut down" if self.workers else "no worker is alive"
            return [_entry(WaitsFor.WORKER, f"{why}; start one with `rolloutpool worker`", queued)]
        found = []
        wanted = sorted({name for worker in taking for name in worker.loading if name in tokenizers})
        if wanted:
            n = sum(any(name in tokenizers for name in worker.loading) for worker in taking)
            names = ", ".join(wanted[:_NAMED])[:500]
            found.append(_entry(WaitsFor.TOKENIZER, f"{n} of {len(taking)} workers load {names}", queued))
        else:
            waiting = sorted({name for worker in taking for name in worker.unloaded if name in tokenizers})
            if waiting:
                text = f"{', '.join(waiting[:_NAMED])[:500]} waits for a place to be loaded: others are loaded before"
                found.append(_entry(WaitsFor.TOKENIZER, text, queued))
        lacking = [text for text in dict.fromkeys(map(self._lacking, needs)) if text]
        found += [_entry(WaitsFor.WORKER, text, queued) for text in lacking[:_NAMED]]
        suited = [worker for worker in taking if not needs or any(self._has(worker, needed) for needed in needs)]
        if suited and all(worker.running >= worker.slots for worker in suited):
            slots = sum(worker.slots for worker in suited)
            which = f"{len(taking)} workers" if len(suited) == len(taking) else f"{len(suited)} suited workers"
            found.append(_entry(WaitsFor.SLOT, f"all {slots} slots of {which} are taken", queued))
        return found

    def _lacking(self, needs: Sequence[str]) -> str:
        """Says which of these no worker has, in words; empty where a worker that can be reached has all of them."""
        if not needs:
            return ""
        taking = [worker for worker in self.workers if worker.alive and not worker.draining]
        suited = [worker for worker in taking if self._has(worker, needs)]
        if not suited:
            lacks = missing(needs, [self._offers[worker.worker_id] for worker in taking])
            if RELEASE in lacks:
                return "all live workers are of an earlier release, which gets no new work; start workers of this one"
            alone = all(any(name in self._offers[worker.worker_id] for worker in taking) for name in needs)
            return f"no live worker has {shown(lacks)}{' together' if alone else ''}; start one that does"
        if any(worker.wire for worker in suited) or (len(suited) == len(taking) and not self.unreadable):
            return ""
        return (
            f"only workers of an earlier release have {shown(needs)}, and they get what every worker has; start one of "
            "this release that has it"
        )

    def _has(self, worker: Worker, needs: Sequence[str]) -> bool:
        return self._offers[worker.worker_id].issuperset(needs)

    @cached_property
    def _offers(self) -> dict[str, frozenset[str]]:
        return {worker.worker_id: frozenset(offer_of(worker)) for worker in self.workers}


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
            listed = await self._workers.listed()
            shared = tuple(worker for worker in listed.workers if worker.role is WorkerRole.SHARED)
            self._state = PoolState(shared, len(listed.unreadable))
            self._read_at = now
        return self._state


def _entry(waits_for: WaitsFor, message: str, queued: int) -> Waiting:
    return Waiting(waits_for=waits_for, message=message, rollouts=queued)
