"""The one asyncio loop of a worker process, in a thread of its own, and the watchdog of that loop.

All rollouts run here as coroutines. A loop that has not run for `WEDGED_SECONDS` ends its process: other workers then
take over its rollouts. Without that, a process that hangs but still exists would keep them.
"""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

__all__ = ["WEDGED_SECONDS", "EventLoop", "watch"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

WEDGED_SECONDS = 30.0
"""A loop that has not run for so long hangs. A starved machine can stop a loop for seconds."""
TICK_SECONDS = 0.5
"""Between two looks at the loop."""
EXIT_WEDGED = 70
"""The process's exit code then."""


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Watches the loop from another thread, and ends the process if it hangs; must be called in the loop's thread."""
    last_tick = time.monotonic()

    def tick() -> None:
        nonlocal last_tick
        last_tick = time.monotonic()
        loop.call_later(TICK_SECONDS, tick)

    def look() -> None:
        while not loop.is_closed():
            time.sleep(TICK_SECONDS)
            silent = time.monotonic() - last_tick
            if silent > WEDGED_SECONDS and loop.is_running():
                _log.critical("the event loop has not run for %.0f s: this worker ends itself", silent)
                os._exit(EXIT_WEDGED)

    tick()
    threading.Thread(target=look, name="watchdog", daemon=True).start()


class EventLoop:
    """A running event loop, to which other threads give coroutines."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts the coroutine on the loop; another thread can wait for the future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop, waits for it in this thread, and returns its result."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """Ends the loop; what still runs on it is cancelled."""
        if not self._stopped:
            self._stopped = True
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
