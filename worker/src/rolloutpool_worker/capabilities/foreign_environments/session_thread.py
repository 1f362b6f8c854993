"""A thread for one session: calls that block are made in it, one after the other.

Some packages want all calls of an object from the thread that made it (SQLite, Playwright). A thread of the session's
own also keeps harm in: a call that never returns blocks its own session, where a shared pool of threads would lose one
of a few, that all others and the lookup of host names need. Such a thread remains until the process ends, and does not
hold that up.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class SessionThread:
    """The thread; it is started with its first call."""

    def __init__(self, name: str) -> None:
        """Starts nothing yet; `name` is the thread's."""
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Makes a call after those before it; returns and raises what it does. When cancelled, it waits no longer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                settle, result = answer.set_result, call(*arguments)
            # Also SystemExit: this thread has to go on, and the environment is told of it.
            except BaseException as error:
                # A future takes no StopIteration.
                fault = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
                _tell(loop, answer, lambda: answer.set_exception(fault))
            else:
                _tell(loop, answer, lambda: settle(result))

        if self._thread is None:
            # A daemon: a call that hangs must not hold up the end of the process.
            self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
            self._thread.start()
        self._work.put(work)
        return await answer

    def end(self, last: Callable[[], object] | None = None) -> None:
        """Ends the thread after the calls that it has."""

        def work() -> None:
            with suppress(BaseException):
                assert last is not None
                last()

        if last is not None:
            self._work.put(work)
        self._work.put(None)

    def _live(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    def told() -> None:
        if not answer.done():
            settle()

    # The loop may have ended meanwhile.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(told)
