"""LoopPool: Celery's pool for tasks that run on the process's event loop and hold no thread meanwhile.

A task here returns a future. Celery hears of its start and its end as of any other task's, so that prefetch, `inspect`
and Flower count it as active for as long as its rollouts run. Two threads take part, Celery's and the event loop's:

1. Celery reserves a message while `Slots` has room, and calls `on_apply` in its thread.
2. `on_apply` tells Celery that the task has started, calls the task, and keeps the future. It waits for nothing.
3. The rollouts run on the event loop. Each that ends gives its slot back; when there is room for a message again,
   `Slots.on_room` wakes Celery's hub, which then reserves the next one.
4. When all rollouts of the message have ended, the future is done. This happens in the event loop's thread, so `_note`
   only queues the end and wakes the hub.
5. `_settle` runs in Celery's thread and tells Celery of each end. All of Celery's callbacks run there.

The pool terminates nothing: Celery would ask for that both for a revoked task and for a cold shutdown, and would lose
what is in flight (docs/decisions/0005).
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from os import getpid
from time import monotonic
from typing import Any

from celery.concurrency.thread import TaskPool

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_worker.queue.celery_compat import PoolTask, TaskCallback, report_failure, report_retry, report_success
from rolloutpool_worker.queue.slots import Slots

_log = logging.getLogger(__name__)


class RolloutsFailed(RolloutPoolError):
    """Rollouts of a ticket failed, which have their results; it makes the ticket a failed task for Celery."""


class RolloutsGoOn(RolloutPoolError):
    """Rollouts of a ticket went back to the queue, to get another one. To Celery it is a retried task."""


@dataclass(frozen=True)
class _Ended:
    callback: TaskCallback
    future: Future[object]
    seconds: float

    def tell(self) -> None:
        try:
            result = self.future.result()
        except RolloutsFailed:
            # No defect: each of them has its line in the log.
            report_failure(self.callback, self.seconds)
        except RolloutsGoOn as error:
            report_retry(self.callback, error, self.seconds)
        except Exception as error:
            # Only the type: the error's text could quote what a message carried.
            _log.error("a task failed with %s", type(error).__name__)
            report_failure(self.callback, self.seconds)
        else:
            report_success(self.callback, result, self.seconds)


class LoopPool(TaskPool):
    """Starts tasks that return a `concurrent.futures.Future`."""

    slots: Slots
    """Set by the process before the worker starts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Called by Celery, with `app`."""
        super().__init__(*args, **kwargs)
        self._hub: Any = None
        self._running: set[Future[object]] = set()
        self._ended: deque[_Ended] = deque()

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery with its hub."""
        self._hub = loop
        # Each turn of the hub asks whether there is room, so it is enough to wake it.
        self.slots.on_room = lambda: loop.call_soon(self._settle)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: TaskCallback | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        **_: Any,
    ) -> None:
        """Starts the task of one message."""
        assert args is not None
        assert callback is not None
        assert accept_callback is not None
        task = PoolTask(*args)
        start = monotonic()
        # Before the task, because its future can be done at once, and Celery must hear of the start first.
        accept_callback(getpid(), start)
        future: Future[object]
        try:
            arguments, named = task.arguments()
            future = self.app.tasks[task.name].run(*arguments, **named)
            if not isinstance(future, Future):
                # One of Celery's own tasks, which this pool's API never sends.
                raise TypeError(f"task {task.name} returns no future")
        except Exception as error:
            # The failure takes the way of all ends, so that Celery hears of it and frees the message's place.
            future = Future()
            future.set_exception(error)
        # In this order: the callback of a future that is done runs at once, and removes it again.
        self._running.add(future)
        future.add_done_callback(lambda ended: self._note(_Ended(callback, ended, monotonic() - start)))

    def _note(self, ended: _Ended) -> None:
        # A deque's `append` and `popleft` are atomic, so the two threads need no lock.
        self._ended.append(ended)
        self._running.discard(ended.future)
        self._hub.call_soon(self._settle)

    def _settle(self) -> None:
        while self._ended:
            try:
                self._ended.popleft().tell()
            except Exception:
                # It would end Celery's loop, and with it all that runs here.
                _log.exception("Celery was not told of a ticket's end")

    def on_stop(self) -> None:
        """Waits for the tasks that still run, and tells Celery of their ends."""
        wait(tuple(self._running))
        self._settle()
        super().on_stop()
