"""Chores: what this process does in the background, again and again, whatever happens.

A chore outlives every outage: it tries again with growing pauses, and says once that the outage began and once that
it is over. Which of several API processes really reconciles is decided by the store's leader lock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store, StoreError

__all__ = ["PeriodicTask", "Reconciler"]

_log = structlog.stdlib.get_logger(__name__)

PERIOD_SECONDS = 1.0
BACKOFF = Backoff(first_s=PERIOD_SECONDS, longest_s=10.0, jitter=False)
RECOVER_EVERY = 5
"""Rounds between two looks for tickets that were lost between outbox and broker."""


class PeriodicTask:
    """One thing to do every `PERIOD_SECONDS`, or at once when it is kicked."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self._work = work
        self._kicked = asyncio.Event()
        self._task = BackgroundTask(name)
        self._failures = 0

    def start(self) -> None:
        """Begins, in the running event loop."""
        self._task.start(self._run())

    async def stop(self) -> None:
        """Ends it, in the middle of its work if need be."""
        await self._task.stop()

    def wake(self) -> None:
        """Does it now; many kicks during one round make one further round."""
        self._kicked.set()

    async def _run(self) -> None:
        while True:
            self._kicked.clear()
            pause = await self._round()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._kicked.wait()

    async def _round(self) -> float:
        """Works once; returns the seconds until the next round."""
        try:
            await self._work()
        # A chore that died of an error nobody foresaw would strand accepted work in silence.
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                unforeseen = None if isinstance(error, StoreError) else error
                _log.warning("chore fails", chore=self.name, error=str(error), exc_info=unforeseen)
            return BACKOFF.delay_s(self._failures)
        if self._failures:
            _log.info("chore works again", chore=self.name, after_failures=self._failures)
            self._failures = 0
        return PERIOD_SECONDS


class Reconciler:
    """Puts back what nobody works on any more, and keeps the outbox flowing."""

    def __init__(self, store: Store, publisher: Publisher) -> None:
        self._store = store
        self._publisher = publisher
        self._rounds = 0
        self._reconcile = PeriodicTask("reconcile", self._reconcile_once)
        # Apart from reconciling, so that a long round there never delays a new batch.
        self._publish = PeriodicTask("publish", publisher.pump)

    def start(self) -> None:
        """Begins to work in the background."""
        self._reconcile.start()
        self._publish.start()

    async def stop(self) -> None:
        """Ends, and lets another process lead."""
        await self._reconcile.stop()
        await self._publish.stop()
        with suppress(StoreError):
            await self._store.reconciliation.resign()

    def publish_soon(self) -> None:
        """Call it after each submission."""
        self._publish.wake()

    async def _reconcile_once(self) -> None:
        report = await self._store.reconciliation.run_once()
        if not report.leader:
            return
        if any(report[1:]):
            _log.info("reconciled", **report._asdict())
        self._rounds += 1
        if self._rounds % RECOVER_EVERY == 0:
            await self._publisher.recover()
        if report.requeued:
            self.publish_soon()
