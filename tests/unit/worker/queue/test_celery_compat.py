"""The internals of Celery that `celery_compat` uses still work; a failure here names the one that changed."""

import logging
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.apps import worker as celery_apps_worker
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer
from celery.worker.control import Panel
from celery.worker.request import Request
from kombu import Message
from kombu.serialization import dumps
from tests.support.waiting import eventually

from rolloutpool_worker.queue.celery_compat import (
    LoopConsumer,
    PoolTask,
    log_signals,
    refuse_revokes,
    report_failure,
    report_retry,
    report_success,
)

celery_worker: Any = celery_apps_worker
"""Without types."""


class HandedOver:
    """A pool that keeps what Celery hands it."""

    def __init__(self) -> None:
        self.args: tuple[Any, ...] = ()

    def apply_async(self, _: object, args: tuple[Any, ...], **__: object) -> None:
        self.args = args


@pytest.fixture
def app() -> Celery:
    app = Celery("test", set_as_current=False)

    @app.task(name="work", shared=False)
    def work(number: int) -> None:
        """Nothing."""

    app.finalize()
    return app


@pytest.fixture
def request_of_celery(app: Celery) -> Any:
    task = cast(Any, app).amqp.as_task_v2("an-id", "work", args=(7,))
    content_type, encoding, body = dumps(task.body, serializer="json")
    message = cast(Any, Message)(
        body=body, content_type=content_type, content_encoding=encoding, headers=task.headers, delivery_tag=1
    )
    return cast(Any, Request)(message, app=app)


def test_a_pool_gets_what_pool_task_says(request_of_celery: Any) -> None:
    pool = HandedOver()
    request_of_celery.execute_using_pool(pool)
    task = PoolTask(*pool.args)
    assert (task.name, task.id) == ("work", "an-id")
    assert task.arguments() == ([7], {})


def test_celery_understands_the_reports_of_a_tasks_end(request_of_celery: Any) -> None:
    report_success(request_of_celery.on_success, "done", 1.5)
    heard: list[Any] = []
    try:
        raise KeyError("x")
    except KeyError:
        report_failure(heard.append, 2.5)
        report_failure(request_of_celery.on_success, 2.5)
    ((failed, info, seconds),) = heard
    assert (failed, seconds) == (True, 2.5)
    assert isinstance(info, ExceptionInfo)
    assert "KeyError" in str(info.traceback)


def test_celery_takes_a_ticket_that_goes_on_for_a_retried_task(
    request_of_celery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(request_of_celery, "send_event", lambda kind, **fields: sent.append((kind, fields)))
    try:
        raise KeyError("deferred")
    except KeyError as error:
        report_retry(request_of_celery.on_success, error, 2.5)
    ((kind, fields),) = sent
    assert kind == "task-retried"
    assert "deferred" in fields["exception"]


def test_a_consumer_sends_its_events_together() -> None:
    class Timer:
        def __init__(self) -> None:
            self.due: list[Callable[[], None]] = []

        def call_after(self, _: float, callback: Callable[[], None]) -> None:
            self.due.append(callback)

    class Dispatcher:
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    timer = Timer()
    # Without Celery's whole worker around it.
    consumer: Any = LoopConsumer.__new__(LoopConsumer)
    consumer.timer = timer
    consumer.event_dispatcher = Dispatcher()
    for _ in range(3):
        consumer.on_send_event_buffered()
    assert len(timer.due) == 1
    timer.due[0]()
    assert consumer.event_dispatcher.flushed == 1


def test_a_consumer_has_the_hooks_that_we_override() -> None:
    # Celery's bootsteps call both by these names.
    assert {"on_ready", "on_send_event_buffered"} <= vars(Consumer).keys()


def test_what_celery_says_of_a_signal_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Put back after the test, with the handler that it installs.
    monkeypatch.setattr(celery_worker, "safe_say", celery_worker.safe_say)
    monkeypatch.setattr(celery_state, "should_stop", None)
    log_signals()
    before = signal.getsignal(signal.SIGTERM)
    try:
        celery_worker.install_worker_term_handler(SimpleNamespace(hostname="w"))
        with caplog.at_level(logging.INFO):
            signal.raise_signal(signal.SIGTERM)
            eventually(lambda: any(record.getMessage() == "celery says" for record in caplog.records))
    finally:
        signal.signal(signal.SIGTERM, before)
    (record,) = [record for record in caplog.records if record.getMessage() == "celery says"]
    assert "Warm shutdown" in getattr(record, "event_fields")["text"]  # noqa: B009
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("command", ["revoke", "terminate"])
def test_nothing_is_revoked_because_a_rollouts_next_ticket_has_the_same_id(
    app: Celery, request_of_celery: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(Panel, "data", {**Panel.data})
    monkeypatch.setattr(celery_state, "revoked", type(celery_state.revoked)())
    refuse_revokes()
    answer = Panel.data[command](SimpleNamespace(app=app, consumer=None), task_id=request_of_celery.id, signal="TERM")
    assert "cancel the rollout by the API" in answer["error"]
    assert request_of_celery.id not in celery_state.revoked
