"""Holds what the worker uses of Celery beyond its documented interface, so that an upgrade breaks this file alone.

- `BasePool.on_apply` gets the arguments of Celery's tracer, in the order of `PoolTask`. We run the task without the
  tracer, which would hold a thread until the task ends.
- A pool's callback takes `(failed, result, seconds)`, as the tracer returns them, with a `billiard.einfo.ExceptionInfo`
  for a failure. We report ends in this form.
- `Consumer.on_send_event_buffered`, with `timer` and `event_dispatcher`: we send events together, not one by one.
- `celery.apps.worker.safe_say`: its signal handlers write plain text with it. We put one in its place that logs.
- `celery.worker.control.Panel.data`: what a worker does at a command, by the command's name. We refuse revokes.
- `Consumer.on_ready`, with `pool`, `timer` and `task_consumer`: we reserve messages by the rollouts that they bring.

`test_celery_compat.py` runs each of them against the installed Celery.
"""

import logging
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from billiard.einfo import ExceptionInfo
from celery.apps import worker as celery_worker
from celery.exceptions import Retry
from celery.worker.consumer import Consumer
from celery.worker.control import Panel
from kombu.serialization import loads

from rolloutpool_common.process.logs import log_event
from rolloutpool_worker.queue.kombu_compat import reserve_only_while

_log = logging.getLogger(__name__)

TaskCallback: TypeAlias = Callable[[tuple[bool, object, float]], None]
"""Hears of a task's end: whether it failed, its result or an `ExceptionInfo`, and its seconds."""

FLUSH_SECONDS = 0.1
"""How long an event may wait for others: each publish costs as much as the rest of what Celery does for a ticket."""


class PoolTask(NamedTuple):
    """Holds what Celery hands a pool for one message, in its order."""

    name: str
    id: str
    request: dict[str, Any]
    body: Any
    content_type: str
    encoding: str

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Decodes the task's arguments; raises whatever a body that is not JSON, or not Celery's, makes kombu raise."""
        arguments, named, _embed = loads(self.body, self.content_type, self.encoding, accept={"application/json"})
        return arguments, named


def report_success(callback: TaskCallback, result: object, seconds: float) -> None:
    """Tells Celery that a task has ended."""
    callback((False, result, seconds))


def report_failure(callback: TaskCallback, seconds: float) -> None:
    """Tells Celery that a task has failed with the exception that is being handled."""
    info = ExceptionInfo()
    # As billiard wraps it, Flower would show `ExceptionWithTraceback()` for every failure.
    info.exception = sys.exception()
    callback((True, info, seconds))


def report_retry(callback: TaskCallback, why: Exception, seconds: float) -> None:
    """Tells Celery that a task's work goes on by another message."""
    info = ExceptionInfo()
    info.exception = Retry(exc=why)
    callback((True, info, seconds))


def log_signals() -> None:
    """Has Celery log what it says when a signal comes; it would be plain text among the lines of the log."""

    def say(message: str, _: object = None) -> None:
        # In a thread: a signal may come while this thread writes a line, and a stream cannot be entered twice.
        text = {"text": message.strip()}
        threading.Thread(target=log_event, args=(_log, logging.INFO, "celery says"), kwargs=text, daemon=True).start()

    setattr(celery_worker, "safe_say", say)  # noqa: B010  a function of another type, to mypy


def refuse_revokes() -> None:
    """Has Celery revoke nothing, for instance by Flower's button.

    All tickets that begin with the same rollout have one id. Celery would remember it for three hours, and discard each
    ticket by which the rollout was to run meanwhile.
    """

    def refuse(_: object, **__: object) -> dict[str, str]:
        text = "nothing is revoked; cancel the rollout by the API"
        log_event(_log, logging.WARNING, "celery says", text=text)
        return {"error": text}

    for command in ("revoke", "revoke_by_stamped_headers", "terminate"):
        Panel.data[command] = refuse


class LoopConsumer(Consumer):
    """A consumer that sends events together, and reserves messages as slots and pace allow."""

    event_dispatcher: Any
    task_consumer: Any
    _due = 0.0

    def on_send_event_buffered(self) -> Any:
        """Sends what is buffered a moment later; Celery would send it at once."""
        now = monotonic()
        # By the clock, not by a flag: a lost connection may discard the timer's entry.
        if now >= self._due:
            self._due = now + FLUSH_SECONDS
            self.timer.call_after(FLUSH_SECONDS, self._send_events)

    def on_ready(self) -> None:
        """Limits reservations to slots and pace. Done after each connection, because each has a new channel."""
        super().on_ready()
        slots, pace = self.pool.slots, self.pool.pace
        # The hub asks again when its timer fires, so the entry need not do anything.
        pace.on_pause = lambda seconds: self.timer.call_after(seconds, lambda: None)
        reserve_only_while(self.task_consumer.channel, lambda: slots.has_room and pace.may_reserve)

    def _send_events(self) -> None:
        if self.event_dispatcher:
            self.event_dispatcher.flush()
