"""The API's background work: reconcile what dead workers left, and publish what waits in the outbox.

A task survives every outage. It tries again after growing pauses, and logs once that it fails and once that it works
again. Of several API processes one reconciles: the holder of the store's leader lock.

Where the work runs:

1. A thread with an event loop and a store of its own looks at the workers, which also keeps the lead, and does the
   other chores: once a second where nothing has changed. With a suspicion it looks four times a second, and at once
   when the end of a worker is reported. So a request that keeps the API's loop busy for seconds delays neither. A look
   has a connection of its own, so that no chore delays it.
2. The API's loop publishes, because the publisher belongs to it. The thread wakes it when rollouts were queued again.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.metrics import RECONCILE_SECONDS
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store, StoreError, keys
from rolloutpool_common.store.liveness import LOOK_SECONDS
from rolloutpool_common.store.reconciliation import Removal
from rolloutpool_common.store.signals import Signals

_log = structlog.stdlib.get_logger(__name__)

PERIOD_SECONDS = 1.0
BACKOFF = Backoff(first_s=PERIOD_SECONDS, longest_s=10.0, jitter=False)
LOOK_BACKOFF = Backoff(first_s=LOOK_SECONDS, longest_s=1.0, jitter=False)
SERVING_SECONDS = 1.0
"""An API whose loop is busy for longer answers nobody, and no lease goes on meanwhile."""
LISTEN_SECONDS = 3600.0
OFFERS_SECONDS = 0.9
"""Between two looks at what the workers offer; a little less than a period, so that each round has one."""
SLOTS_SECONDS = 4.5
"""Between two counts of the slots of all workers. They only bound an estimate of what running rollouts still take."""
RECOUNT_SECONDS = 3600.0
"""Between two recounts of what owners hold: some microseconds of Redis' time for each batch that is kept."""
RECOVER_EVERY = 5
"""Rounds between two looks for tickets that were lost between outbox and broker."""


class PeriodicTask:
    """Work that is done every `PERIOD_SECONDS`, and at once when it is woken."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[object]],
        *,
        period_s: Callable[[], float] | None = None,
        backoff: Backoff = BACKOFF,
    ) -> None:
        """Prepares the task."""
        self.name = name
        self._work = work
        self._period_s = period_s
        self._backoff = backoff
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
            return self._backoff.delay_s(self._failures)
        if self._failures:
            _log.info("chore works again", chore=self.name, after_failures=self._failures)
            self._failures = 0
        return PERIOD_SECONDS if self._period_s is None else self._period_s()


class Reconciler:
    """Puts rollouts of dead workers back into the queue, and publishes the outbox."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        publisher: Publisher,
        signals: Signals,
        *,
        stalled_s: float,
        new_bytes: int,
    ) -> None:
        """Prepares without connecting."""
        self._open_store = open_store
        self._publisher = publisher
        self._signals = signals
        self._stalled_s = stalled_s
        self._new_bytes = new_bytes
        self._rounds = 0
        self._leads = False
        self._recount_at = 0.0
        """When what owners hold is counted anew, on the monotonic clock; at once by a process that begins to lead."""
        self._slots, self._count_slots_at = 0, 0.0
        """Of all workers, and when they are counted next, on the monotonic clock."""
        self._look_again = 0.0
        """When it is looked next at what the workers offer, on the monotonic clock."""
        self._publish = PeriodicTask("publish", self._publish_once)
        self._look: PeriodicTask | None = None
        """Of the thread, once that runs."""
        self._listening = BackgroundTask("ends of workers")
        self._thread: threading.Thread | None = None
        self._api_loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def start(self) -> None:
        """Begins all tasks; those of the API's loop run in the running one. Redis need not answer yet."""
        self._api_loop = asyncio.get_running_loop()
        self._own_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()
        self._publish.start()
        self._listening.start(self._listen())

    async def stop(self) -> None:
        """Ends, and gives up the lead to another process."""
        await self._listening.stop()
        await self._publish.stop()
        if self._thread is not None and self._own_loop is not None:
            self._own_loop.call_soon_threadsafe(self._ending.set)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def publish_soon(self) -> None:
        """Publishes now instead of at the next period; to be called after each submission. Returns at once."""
        self._publish.wake()

    async def _publish_once(self) -> None:
        if self._leads and time.monotonic() >= self._look_again:
            self._look_again = time.monotonic() + OFFERS_SECONDS
            await self._publisher.follow_offers()
        await self._publisher.pump()
        self._rounds += 1
        if self._leads and self._rounds % RECOVER_EVERY == 0:
            await self._publisher.recover()

    async def _listen(self) -> None:
        """Has the thread look at once when the end of a worker is reported."""
        async with self._signals.watch(keys.ENDS) as watch:
            while True:
                if await watch.wait(LISTEN_SECONDS) and self._look is not None and self._own_loop is not None:
                    # The thread may have ended in the meantime.
                    with suppress(RuntimeError):
                        self._own_loop.call_soon_threadsafe(self._look.wake)

    def _note_removal(self, removal: Removal) -> None:
        """Has the rollouts of a dead worker published at once; called in the thread."""
        assert self._api_loop is not None
        _log.info("dead worker removed", **removal._asdict())
        # The API's loop may have ended in the meantime.
        with suppress(RuntimeError):
            self._api_loop.call_soon_threadsafe(self.publish_soon)

    async def _is_serving(self) -> bool:
        """Whether the API's loop runs, so that it answers its callers."""
        assert self._api_loop is not None
        ran = asyncio.Event()
        own_loop = asyncio.get_running_loop()
        try:
            self._api_loop.call_soon_threadsafe(own_loop.call_soon_threadsafe, ran.set)
            async with asyncio.timeout(SERVING_SECONDS):
                await ran.wait()
        except (TimeoutError, RuntimeError):
            return False
        return True

    def _run(self) -> None:
        assert self._own_loop is not None
        try:
            self._own_loop.run_until_complete(self._reconcile())
        finally:
            self._own_loop.close()

    async def _reconcile(self) -> None:
        """All that the thread does, until `stop`."""
        store = self._open_store()
        liveness = store.watch(stalled_s=self._stalled_s, on_removed=self._note_removal)

        async def look() -> None:
            self._leads = False
            self._leads = await liveness.look()

        async def reconcile() -> None:
            serving = await self._is_serving()
            start = time.perf_counter()
            report = await store.reconciliation.run_once(serving=serving)
            if not report.leader:
                self._recount_at = 0.0
            elif time.monotonic() >= self._recount_at:
                await store.usage.recount()
                self._recount_at = time.monotonic() + RECOUNT_SECONDS
            if report.leader:
                if time.monotonic() >= self._count_slots_at:
                    self._slots = sum(worker.slots for worker in await store.workers.known() if worker.alive)
                    self._count_slots_at = time.monotonic() + SLOTS_SECONDS
                await store.usage.balance(self._slots, self._new_bytes)
                RECONCILE_SECONDS.observe(time.perf_counter() - start)
            # All fields after the first are counts; rounds in which nothing happened are not logged.
            if report.leader and any(report[1:]):
                _log.info("reconciled", **report._asdict())

        self._look = PeriodicTask("look at workers", look, period_s=lambda: liveness.pause_s, backoff=LOOK_BACKOFF)
        tasks = (
            self._look,
            PeriodicTask("reconcile", reconcile),
        )
        for task in tasks:
            task.start()
        await self._ending.wait()
        for task in tasks:
            await task.stop()
        # Without Redis the lock can't be given up; it then expires by itself.
        with suppress(StoreError):
            await store.reconciliation.resign()
        await liveness.close()
        await store.close()
