"""The one asyncio loop of a worker process, in a thread of its own, and the watchdog of that loop.

All rollouts run here as coroutines. The watchdog is a thread that looks at the loop twice a second:

1. The loop has not run for `WEDGED_SECONDS`, or its thread has ended: the watchdog ends the process, and other workers
   take over its rollouts. Without that, a process that exists but does nothing would keep them.
2. The loop has not run for `STALLED_SECONDS`: the log says so, and which tool holds it, again and again at growing
   intervals. A tool that never comes back is so named before the process ends.
3. The watchdog itself slept much longer than it wanted (`STOPPED_SECONDS`): the whole process was stopped, or the
   machine was paused or starved. That is no fault of the loop, so its time begins anew.
"""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from rolloutpool_worker.tools import ToolWatch

T = TypeVar("T")
_log = logging.getLogger(__name__)

WEDGED_SECONDS = 30.0
"""A loop that has not run for so long hangs. A starved machine can stop a loop for seconds."""
STALLED_SECONDS = 2.0
"""A loop that has not run for so long is told in the log."""
TICK_SECONDS = 0.5
"""Between two looks at the loop."""
STOPPED_SECONDS = 2.0
"""A watchdog that has slept for so long was not running, and then the loop was not either."""
EXIT_WEDGED = 70
"""The process's exit code then."""


class Watchdog:
    """Says whether the loop of one thread still gets on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begins the loop's time."""
        self._loop = loop
        self._thread = thread
        self._clock = clock
        self._sleep = sleep
        self._last_tick = clock()
        self._told_at = STALLED_SECONDS

    def tick(self) -> None:
        """Notes that the loop runs; called on the loop, which then calls it every `TICK_SECONDS`."""
        self._last_tick = self._clock()
        self._told_at = STALLED_SECONDS
        self._loop.call_later(TICK_SECONDS, self.tick)

    def look(self) -> str | None:
        """Sleeps for `TICK_SECONDS`, then looks at the loop; returns what is wrong with it, or None."""
        before = self._clock()
        self._sleep(TICK_SECONDS)
        now = self._clock()
        # A loop that was stopped as it should be is closed before its thread ends, so the thread is looked at first.
        if not self._thread.is_alive() and not self._loop.is_closed():
            return "the thread of the event loop has ended"
        if now - before > STOPPED_SECONDS:
            _log.warning("this process did not run for %.0f s", now - before)
            self._last_tick = now
        # A loop that does not run yet, or no longer, is silent and does not hang; so it must be running.
        silent = now - self._last_tick
        if silent > min(self._told_at, WEDGED_SECONDS) and self._loop.is_running():
            step = ToolWatch.step
            holds = f": tool {step.tool} holds it" if step else ""
            stalled = f"the event loop has not run for {silent:.0f} s{holds}"
            if silent > WEDGED_SECONDS:
                return stalled
            _log.warning("%s", stalled)
            self._told_at = 2 * silent
        return None

    def run(self) -> None:
        """Looks until the loop is closed, and ends the process if something is wrong with the loop."""
        while not self._loop.is_closed():
            wrong = self.look()
            if wrong is not None:
                _log.critical("%s: this worker ends itself", wrong)
                # `sys.exit` would end the watchdog's thread alone.
                os._exit(EXIT_WEDGED)


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Watches the loop from another thread, and ends the process if it hangs; must be called in the loop's thread."""
    watchdog = Watchdog(loop, threading.current_thread())
    watchdog.tick()
    threading.Thread(target=watchdog.run, name="watchdog", daemon=True).start()


class EventLoop:
    """A running event loop, to which other threads give coroutines."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()
        # A process that ends without `stop`, for it could not start, ended by signal 11 now and then: uvloop called an
        # interpreter that was gone.
        atexit.register(self.stop)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the loop; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop, waits for it in this thread, and returns its result."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """Ends the loop, and waits up to ten seconds for its thread. What still runs on it is cancelled."""
        if not self._stopped:
            # The flag comes first: `_run` starts a loop again that ends without it.
            self._stopped = True
            atexit.unregister(self.stop)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        watch(self._loop)
        while not self._stopped:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio lets these two out of the loop, whichever task raised them. What awaits that task gets the
                # error too, so nothing is lost if the loop goes on; if it ended, all rollouts would stand still.
                _log.error("a task raised %s, and the event loop goes on", type(error).__name__)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
