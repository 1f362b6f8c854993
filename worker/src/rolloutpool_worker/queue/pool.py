"""Celery's pool and consumer, for tasks that run on the process's event loop and hold no thread meanwhile.

A task here returns a future. Celery hears of its start and its end as of any other task's, so that prefetch, `inspect`
and Flower count it as active for as long as its rollouts run. All of Celery's callbacks run in the thread of its hub.

It terminates nothing: Celery would call that for a revoked task and for a cold shutdown alike, and lose what is in
flight (docs/decisions/0009).
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from os import getpid
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool
from celery.worker.consumer import Consumer
from kombu.serialization import loads

__all__ = ["LoopConsumer", "LoopPool", "Slots"]

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
"""How long an event may wait for others: each publish costs as much as the rest of what Celery does for a ticket."""


@dataclass(frozen=True)
class _Ended:
    callback: Callable[[tuple[bool, object, float]], None]
    future: Future[object]
    seconds: float

    def tell(self) -> None:
        """Lets Celery know, in the form of its tracer."""
        try:
            result = self.future.result()
        except Exception as error:
            # Its text could quote what a message carried.
            _log.error("a task failed with %s", type(error).__name__)
            self.callback((True, ExceptionInfo(), self.seconds))
        else:
            self.callback((False, result, self.seconds))


class Slots:
    """How many rollouts a process may still take; each holds one, so that a slow one keeps no other's place."""

    def __init__(self, total: int, ticket: int) -> None:
        """`ticket`: rollouts that one message may bring."""
        self._total = total
        self._ticket = ticket
        # Two counters, because two threads count: Celery's takes, the loop's gives back.
        self._taken = self._given = 0
        self.on_room: Callable[[], object] = lambda: None

    @property
    def has_room(self) -> bool:
        """Whether a whole ticket may come."""
        return self._taken - self._given + self._ticket <= self._total

    def take(self, count: int) -> None:
        """In Celery's thread."""
        self._taken += count

    def give(self) -> None:
        """In the loop's thread."""
        had_room = self.has_room
        self._given += 1
        if self.has_room and not had_room:
            self.on_room()


class LoopPool(TaskPool):
    """Starts tasks that return a `concurrent.futures.Future`."""

    slots: Slots

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Celery makes it, with `app`."""
        super().__init__(*args, **kwargs)
        self._hub: Any = None
        self._running: set[Future[object]] = set()
        self._ended: deque[_Ended] = deque()

    def register_with_event_loop(self, loop: Any) -> None:
        """Part of Celery's interface."""
        self._hub = loop
        # The hub looks whether there is room each time it turns.
        self.slots.on_room = lambda: loop.call_soon(self._settle)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """Starts the task of one message. `target` is Celery's tracer, which would wait for it."""
        assert args is not None
        assert callback is not None
        assert accept_callback is not None
        name, _task_id, _request, body, content_type, encoding = args
        start = monotonic()
        accept_callback(getpid(), start)
        future: Future[object]
        try:
            (arguments, named, _embed) = loads(body, content_type, encoding, accept={"application/json"})
            future = self.app.tasks[name].run(*arguments, **named)
            if not isinstance(future, Future):
                # One of Celery's own, which nobody here sends.
                raise TypeError(f"task {name} returns no future")
        except Exception as error:
            future = Future()
            future.set_exception(error)
        self._running.add(future)
        future.add_done_callback(lambda ended: self._note(_Ended(callback, ended, monotonic() - start)))

    def _note(self, ended: _Ended) -> None:
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
        """Waits for what runs."""
        wait(tuple(self._running))
        self._settle()
        super().on_stop()


class LoopConsumer(Consumer):
    """Sends events some at a time, and reserves messages by what they bring."""

    event_dispatcher: Any
    task_consumer: Any
    _due = 0.0

    def on_send_event_buffered(self) -> Any:
        """Celery would send them at once."""
        now = monotonic()
        # By the clock: a lost connection may take the timer's entry along.
        if now >= self._due:
            self._due = now + FLUSH_SECONDS
            self.timer.call_after(FLUSH_SECONDS, self._send_events)

    def _send_events(self) -> None:
        if self.event_dispatcher:
            self.event_dispatcher.flush()

    def on_ready(self) -> None:
        """Celery counts messages; here each takes as many slots as it brings rollouts."""
        super().on_ready()
        qos, slots = self.task_consumer.channel.qos, self.pool.slots
        may_reserve = qos.can_consume
        qos.can_consume = lambda: slots.has_room and may_reserve()
