"""Celery's side of a ticket: it starts, it ends, and Celery hears of both, in its own thread."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry

from rolloutpool_worker.queue.pool import LoopPool, RolloutsFailed, RolloutsGoOn
from rolloutpool_worker.queue.slots import Slots


class Hub:
    """Celery's loop, turned by hand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def turn(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Celeries:
    """A pool with one task, and what Celery heard of it."""

    def __init__(self) -> None:
        self.app = Celery("test", set_as_current=False)
        self.futures: list[Future[Any]] = []
        self.accepted = 0
        self.heard: list[Any] = []
        self.hub = Hub()

        # Shared, the first test's task would be that of all later ones.
        @self.app.task(name="work", shared=False)
        def work(number: int) -> Future[Any]:
            if number < 0:
                raise ValueError("SECRET")
            self.futures.append(Future())
            return self.futures[-1]

        self.pool = LoopPool(4, app=self.app)
        self.pool.slots = Slots(4)
        self.pool.register_with_event_loop(self.hub)

    def apply(
        self,
        body: str,
        content_type: str = "application/json",
        *,
        name: str = "work",
        told: Callable[[Any], None] | None = None,
    ) -> None:
        def accept(*_: object) -> None:
            self.accepted += 1

        def tracer(*_: object) -> None:
            pytest.fail("Celery's tracer would wait for the task")

        self.pool.on_apply(
            tracer,
            (name, "id", {}, body, content_type, "utf-8"),
            callback=told or self.heard.append,
            accept_callback=accept,
        )


@pytest.fixture
def celeries() -> Celeries:
    return Celeries()


def body(number: int) -> str:
    return json.dumps([[number], {}, {}])


def test_a_task_is_accepted_at_once_and_ends_in_celerys_own_thread(celeries: Celeries) -> None:
    celeries.apply(body(1))
    assert celeries.accepted == 1
    celeries.futures[0].set_result(["completed"])
    assert celeries.heard == []
    celeries.hub.turn()
    ((failed, result, seconds),) = celeries.heard
    assert (failed, result) == (False, ["completed"])
    assert 0 <= seconds < 60


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        (body(-1), "application/json"),
        ("[", "application/json"),
        ("[]", "application/json"),
        (body(1), "application/x-python-serialize"),
    ],
    ids=["task fails", "no JSON", "no arguments", "pickle"],
)
def test_what_cannot_be_run_is_a_failed_task_and_no_crash(
    celeries: Celeries, text: str, content_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    celeries.apply(text, content_type)
    celeries.hub.turn()
    ((failed, info, _),) = celeries.heard
    assert failed
    assert info.exception is not None
    assert celeries.futures == []
    assert "a task failed with" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_task_of_celerys_own_is_refused(celeries: Celeries) -> None:
    celeries.apply(json.dumps([[[1, 2]], {}, {}]), name="celery.accumulate")
    celeries.hub.turn()
    ((failed, _, _),) = celeries.heard
    assert failed


@pytest.mark.parametrize("end", [RolloutsFailed("1 of 2 rollouts failed"), RolloutsGoOn("completed, deferred")])
def test_a_ticket_whose_rollouts_failed_or_go_on_is_a_failed_or_retried_task_and_no_error_of_ours(
    celeries: Celeries, caplog: pytest.LogCaptureFixture, end: Exception
) -> None:
    celeries.apply(body(1))
    celeries.futures[0].set_exception(end)
    celeries.hub.turn()
    ((failed, info, _),) = celeries.heard
    assert failed
    told = info.exception.exc if isinstance(end, RolloutsGoOn) else info.exception
    assert isinstance(info.exception, Retry) is isinstance(end, RolloutsGoOn)
    assert str(end) in repr(told)
    assert caplog.messages == []


def test_a_coroutine_that_failed_or_was_cancelled_is_a_failed_task(celeries: Celeries) -> None:
    celeries.apply(body(1))
    celeries.apply(body(2))
    celeries.futures[0].set_exception(KeyError("x"))
    celeries.futures[1].cancel()
    celeries.hub.turn()
    (first, info, _), (second, other, _) = celeries.heard
    assert first
    assert second
    assert "KeyError" in info.traceback
    assert "CancelledError" in other.traceback


def test_a_celery_that_cannot_be_told_of_one_end_is_told_of_the_next(celeries: Celeries) -> None:
    def deaf(_: object) -> None:
        raise OSError("no connection")

    celeries.apply(body(1), told=deaf)
    celeries.apply(body(2))
    for future in celeries.futures:
        future.set_result("completed")
    celeries.hub.turn()
    assert [result for _, result, _ in celeries.heard] == ["completed"]


def test_stopping_waits_for_what_runs_and_tells_of_it(celeries: Celeries) -> None:
    celeries.apply(body(1))
    celeries.apply(body(2))
    for future in celeries.futures:
        future.set_result("drained")
    celeries.pool.on_stop()
    assert [result for _, result, _ in celeries.heard] == ["drained", "drained"]
