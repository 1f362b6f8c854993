"""An event loop of a grader's own, in a thread, so that one that blocks it stops neither its worker nor other graders.

1. All calls of one `async` grader run on one such loop, so that what it keeps (a client, a session) fits its loop.
2. A call that is over its limit is cancelled. If the loop does not answer then, somebody's code holds it.
3. Such a loop is left: later calls get another one. What holds it is interrupted where Python can do that, which is
   between two of its instructions; what waits in C, such as `time.sleep`, goes on until it returns.
4. The thread ends when the last call on its loop has ended.

For example, a grader computes for 20 s without an `await`, and its limit is 8 s: after 8 s the rollout goes on to its
next try, and a second later the computation ends with `LoopHeld`.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 1.0
"""A loop that does nothing else answers within a millisecond. On a starved machine it may take longer."""


class LoopHeld(BaseException):
    """The code held its event loop for longer than its limit. No `Exception`, so that nobody takes it for their own."""


class OwnLoop:
    """The loop and its thread."""

    def __init__(self, name: str) -> None:
        """Starts the thread, under this name."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._left = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread is there."""
        return self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Runs a coroutine there; cancelling the future cancels it."""
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            if answer.cancelled():
                return coroutine.close()
            task = self._loop.create_task(coroutine)
            started.append(task)
            self._tasks.add(task)
            task.add_done_callback(ended)
            return None

        def ended(task: "asyncio.Task[T]") -> None:
            # Read here, because nobody else reads the error of a call that was given up.
            error = None if task.cancelled() else task.exception()
            # The caller's loop may have ended meanwhile.
            with suppress(RuntimeError):
                here.call_soon_threadsafe(settle, task, error)
            self._tasks.discard(task)
            self._stop_if_left()

        def settle(task: "asyncio.Task[T]", error: BaseException | None) -> None:
            if answer.done():
                return
            if task.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def cancel() -> None:
            for task in started:
                task.cancel()

        answer.add_done_callback(lambda given_up: self._soon(cancel) if given_up.cancelled() else None)
        self._soon(start)
        return answer

    async def answers(self) -> bool:
        """Says whether the loop runs, after at most `ANSWER_SECONDS`."""

        async def answer() -> None:
            return None

        done, _ = await asyncio.wait({self.submit(answer())}, timeout=ANSWER_SECONDS)
        return bool(done)

    def interrupt(self) -> None:
        """Raises `LoopHeld` in the code that holds the loop, as soon as Python runs it."""
        if self._thread.ident is not None and self.alive:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(LoopHeld))

    def leave(self) -> None:
        """Has the thread end after the calls that it has."""
        self._soon(self._leave)

    def end(self) -> None:
        """Has the thread end now, as soon as nothing holds the loop; what runs there is cancelled."""
        self._soon(self._loop.stop)

    def _soon(self, call: Callable[[], object]) -> None:
        # It may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _leave(self) -> None:
        self._left = True
        self._stop_if_left()

    def _stop_if_left(self) -> None:
        if self._left and not self._tasks:
            self._loop.stop()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            # It came late, when the code that it was meant for had returned.
            except LoopHeld:
                continue
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        # One step, in which they are cancelled; one that does not obey is left.
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()
        self._loop.close()
