"""Liveness: the reconciler's looks at all workers, and what follows when one is dead.

Each API process looks (`look.lua`) on a connection of its own that repeats nothing and is shared with nothing, so that
a look says when it was made: once a second where the look before has seen nothing amiss, else four times. The report of
an end brings the next look at once (`Workers.report_end`). In each look:

1. **Verdicts.** What the look saw goes to `verdicts.py`, which says by the looks so far who is dead.
2. **Gaps.** If the look failed or took long, or was made on a new connection, or Redis was started again, that time
   counts for nothing.
3. **Lead.** Only the leader acts; for the others a look ends here. They look all the same, because suspicion is never
   stored: a new leader judges by what it has seen itself, and would otherwise wait for the longest limit once more.
4. **Obituaries.** A parent has reported that its worker's process ended: dead, without any further evidence.
5. **Condemned.** `condemn.lua` looks once more and marks the worker. From then on it may claim nothing.
6. **Removal.** In a task of its own, so that looks go on, the worker's rollouts are queued again, and the worker is
   forgotten (`reconciliation.py`). A removal that was broken off is found by its mark and begun again.

What the death counts as depends on how much is known (`release.lua`): nothing where the process stopped as it was told,
`deaths` where the cause came from outside (`process_end.py`, or a lost host), else `crashes`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rolloutpool_common.protocol.process_end import EndCause, ProcessEnd
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.connection import Connection, LoneConnection
from rolloutpool_common.store.errors import StoreError, store_errors
from rolloutpool_common.store.reconciliation import LEASE_MS, Reconciliation, Removal
from rolloutpool_common.store.verdicts import STALLED_SECONDS, DeathVerdict, Sighting, Verdicts
from rolloutpool_common.store.workers import Workers

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Between two looks where there is suspicion."""
REST_SECONDS = 1.0
"""Between two looks where there is none. A death that nobody reports is noticed by so much later at most."""
RESTARTED_SECONDS = 10.0
"""Without verdicts after a start of Redis: every worker connects again, and each at its own time."""

Deaths = dict[str, str]
"""Worker -> what its death counts as: `crashes`, `deaths`, or nothing."""


class Liveness:
    """One process's looks at the workers of a store."""

    def __init__(
        self,
        connection: Connection,
        reconciliation: Reconciliation,
        *,
        stalled_s: float = STALLED_SECONDS,
        on_removed: Callable[[Removal], None] | None = None,
    ) -> None:
        """Prepares without connecting; the arguments are those of `Store.watch`."""
        self._connection = connection
        self._lone = LoneConnection(connection.url)
        self._workers = Workers(connection)
        self._reconciliation = reconciliation
        self._verdicts = Verdicts(stalled_s=stalled_s)
        self._epoch = self._connects = 0
        self._removals: dict[str, asyncio.Task[Removal]] = {}
        self._on_removed = on_removed
        self._deaths: Deaths = {}
        """Those whose removal is not complete."""
        self.pause_s = LOOK_SECONDS
        """Seconds until the next look, as the last one has found things."""

    async def look(self) -> bool:
        """Looks once; if this process leads, it begins the removal of each worker that is dead."""
        asked = time.monotonic()
        put_off_s, self.pause_s = self.pause_s - LOOK_SECONDS, LOOK_SECONDS
        try:
            answer = named(await self._lone.script("look", self._reconciliation.process_id, LEASE_MS))
        except BaseException:
            self._verdicts.interrupt()
            raise
        if self._lone.connects != self._connects:
            # At the first look of a process nothing was away.
            if self._connects:
                self._verdicts.interrupt()
            self._connects = self._lone.connects
        if answer["epoch"] != self._epoch:
            if self._epoch:
                self._verdicts.interrupt(RESTARTED_SECONDS)
            self._epoch = answer["epoch"]
        verdicts = self._verdicts.judge(_sightings(answer), took_s=time.monotonic() - asked, put_off_s=put_off_s)
        if not any(answer[sign] for sign in ("absent", "doubtful", "condemned", "obituaries")):
            self.pause_s = REST_SECONDS
        if not answer["leader"]:
            return False
        condemned = await self._condemn(answer, verdicts)
        # What was marked before, by this process or by a leader that has died since.
        for worker_id in [*condemned, *map(bytes.decode, answer["condemned"])]:
            self._remove(worker_id)
        return True

    async def removed(self) -> Removal:
        """Waits for the removals that have begun; returns what they did together."""
        done = await asyncio.gather(*self._removals.values())
        return Removal(sum(one.requeued for one in done), sum(one.poisoned for one in done))

    async def close(self) -> None:
        """Ends the removals that are under way, and closes the connection."""
        for removal in list(self._removals.values()):
            removal.cancel()
        await asyncio.gather(*self._removals.values(), return_exceptions=True)
        await self._lone.close()

    async def _condemn(self, answer: dict[str, Any], verdicts: Sequence[DeathVerdict]) -> list[str]:
        """Steps 4 and 5; returns the workers that it has marked."""
        condemned = []
        for worker_id, death in _reported(answer["obituaries"]).items():
            if worker_id in self._removals:
                continue
            self._deaths[worker_id] = death
            if await self._workers.condemn(worker_id):
                condemned.append(worker_id)
            else:
                # It has left the list, and had no claims.
                await self._forget(worker_id)
        for verdict in verdicts:
            saves = verdict.cause.lifeline_saves
            if await self._workers.condemn(verdict.worker_id, verdict.beat, lifeline_saves=saves):
                _log.warning("worker %s is declared dead: %s", verdict.worker_id, verdict.cause)
                self._deaths[verdict.worker_id] = "deaths" if verdict.host_lost else "crashes"
                condemned.append(verdict.worker_id)
        return condemned

    def _remove(self, worker_id: str) -> None:
        if worker_id not in self._removals:
            removal = asyncio.create_task(self._put_back(worker_id))
            self._removals[worker_id] = removal
            removal.add_done_callback(lambda _: self._removals.pop(worker_id))

    async def _put_back(self, worker_id: str) -> Removal:
        try:
            removal = await self._reconciliation.remove_worker(worker_id, self._deaths.get(worker_id, "crashes"))
            await self._forget(worker_id)
        except StoreError as error:
            _log.warning("worker %s is not removed yet: %s", worker_id, error.message)
            return Removal()
        if self._on_removed is not None:
            self._on_removed(removal)
        return removal

    async def _forget(self, worker_id: str) -> None:
        with store_errors():
            # An isolated one stands in its set before it beats (`Workers.announce`), and may have ended in between.
            await self._connection.redis.srem(keys.ISOLATED, worker_id)
            await self._connection.redis.hdel(keys.OBITUARIES, worker_id)
        self._deaths.pop(worker_id, None)


def _reported(obituaries: list[bytes]) -> Deaths:
    deaths = {}
    for worker_id, text in zip(obituaries[::2], obituaries[1::2], strict=True):
        end = ProcessEnd.parse(text.decode())
        outside = "" if end.cause is EndCause.STOPPED else "deaths"
        deaths[worker_id.decode()] = "crashes" if end.suspicious else outside
    return deaths


def _sightings(answer: dict[str, Any]) -> dict[str, Sighting]:
    listed = answer["workers"]
    condemned = set(answer["condemned"])
    sightings = {
        worker.decode(): Sighting(beat, subscribed=True)
        for worker, beat in zip(listed[::2], listed[1::2], strict=True)
        if worker not in condemned
    }
    doubtful = {worker: (idle_ms / 1000, mark) for worker, idle_ms, mark in answer["doubtful"]}
    for worker, (idle_s, mark) in doubtful.items():
        if worker not in condemned:
            sightings[worker.decode()] = replace(sightings[worker.decode()], idle_s=idle_s, mark=mark)
    for worker, lifeline, host, supervisor, beaten, supervised in answer["absent"]:
        if worker in condemned:
            continue
        worker_id = worker.decode()
        sightings[worker_id] = replace(
            sightings[worker_id],
            subscribed=False,
            lifeline=bool(lifeline),
            host=host.decode(),
            supervisor=supervisor.decode() or None,
            supervised=bool(supervised),
            restarted=not beaten,
        )
    return sightings
