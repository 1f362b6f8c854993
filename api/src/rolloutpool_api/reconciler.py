"""The API's background work: reconcile what dead workers left, and publish what waits in the outbox.

A task survives every outage. It tries again after growing pauses, and logs once that it fails and once that it works
again. Of several API processes one reconciles: the holder of the store's leader lock.
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
    """Work that is done every `PERIOD_SECONDS`, and at once when it is woken."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self._work = work
        self._woken = asyncio.Event()
        self._task = BackgroundTask(name)
        self._failures = 0

    def start(self) -> None:
        """Begins with a first round at once, in the running event loop."""
        self._task.start(self._run())

    async def stop(self) -> None:
        """Ends the task, even in the middle of its work."""
        await self._task.stop()

    def wake(self) -> None:
        """Does the work now. Several calls during one round make one further round."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            # Before the round and not after it: a call of `wake` during the round must cause another one.
            self._woken.clear()
            pause = await self._round()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _round(self) -> float:
        """Works once; returns the seconds until the next round."""
        try:
            await self._work()
        # If the task died of an unforeseen error, accepted work would wait for ever and nothing would say so.
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
    """Puts rollouts of dead workers back into the queue, and publishes the outbox."""

    def __init__(self, store: Store, publisher: Publisher) -> None:
        self._store = store
        self._publisher = publisher
        self._rounds = 0
        self._reconcile = PeriodicTask("reconcile", self._reconcile_once)
        # A task of its own, so that a long round of reconciling never delays a new batch.
        self._publish = PeriodicTask("publish", publisher.pump)

    def start(self) -> None:
        """Begins both tasks in the running event loop; Redis need not answer yet."""
        self._reconcile.start()
        self._publish.start()

    async def stop(self) -> None:
        """Ends, and gives up the lead to another process."""
        await self._reconcile.stop()
        await self._publish.stop()
        # Without Redis the lock can't be given up; it then expires by itself.
        with suppress(StoreError):
            await self._store.reconciliation.resign()

    def publish_soon(self) -> None:
        """Publishes now instead of at the next period; to be called after each submission. Returns at once."""
        self._publish.wake()

    async def _reconcile_once(self) -> None:
        report = await self._store.reconciliation.run_once()
        if not report.leader:
            return
        # All fields after the first are counts; rounds in which nothing happened are not logged.
        if any(report[1:]):
            _log.info("reconciled", **report._asdict())
        self._rounds += 1
        if self._rounds % RECOVER_EVERY == 0:
            await self._publisher.recover()
        # Rollouts of dead workers have waited long enough: they need not wait for the next period too.
        if report.requeued:
            self.publish_soon()
