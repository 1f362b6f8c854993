"""A task that runs beside everything else in an event loop, from its start until it is stopped.

Nobody awaits such a task, so nobody would hear of its end. A worker whose beats had ended that way took tickets for
ever and ran none of them. So a task that ends by an error logs its traceback and ends the process, whose parent starts
another: a process of which a part is missing is worse than none.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)

ENDING_SECONDS = 60.0
"""Until a process that ends itself is ended for good: what is missing may be what its orderly end needs."""
AGAIN_SECONDS = 5.0
"""After so long work that has not ended is cancelled again. What it does at its end takes less."""
EXIT_BROKEN = 71
"""The process's exit code then."""


def end_process() -> None:
    """Ends this process in the ordinary way (SIGTERM), and after `ENDING_SECONDS` without ceremony."""
    timer = threading.Timer(ENDING_SECONDS, os._exit, (EXIT_BROKEN,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


class BackgroundTask:
    """One background task, which can be started, stopped and started again."""

    def __init__(self, name: str, on_error: Callable[[], None] = end_process) -> None:
        """Prepares without starting."""
        self.name = name
        self._on_error = on_error
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts the work in the running event loop."""
        self._task = asyncio.create_task(work, name=self.name)
        self._task.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Cancels the work and waits for its end; does nothing where it was never started."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            # Again after a while: Python 3.11's `wait_for` swallows a cancellation that comes with its result, and then
            # the work would go on, and a process that stops would wait for it for ever.
            await asyncio.wait({task}, timeout=AGAIN_SECONDS)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("the task %r has ended by an error, so this process ends", self.name, exc_info=error)
            self._on_error()
