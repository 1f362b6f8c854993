"""Flower's own metrics have one name for all tickets, however many batches there are."""

from typing import Any

import pytest
from celery.events.state import State
from flower.events import PrometheusMetrics, get_prometheus_metrics
from prometheus_client import REGISTRY

from rolloutpool_common.queue.celery_app import TASK_NAME
from rolloutpool_worker.queue.flower_compat import count_under_one_name


def test_batches_make_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    # Put back after the test.
    monkeypatch.setattr(PrometheusMetrics, "observe_task", PrometheusMetrics.observe_task)
    count_under_one_name()
    metrics = get_prometheus_metrics()
    state: Any = State()
    for number in range(50):
        event = {"type": "task-received", "uuid": f"t{number}", "hostname": "w", "name": f"batch b{number}"}
        state.event({**event, "timestamp": 1.0, "local_received": 1.0, "clock": number, "utcoffset": 0, "pid": 1})
        metrics.observe_task("w", event, state.tasks[f"t{number}"])
    assert state.tasks["t7"].name == "batch b7"
    (counted,) = [family for family in REGISTRY.collect() if family.name == "flower_events"]
    totals = {sample.labels["task"]: sample.value for sample in counted.samples if sample.name.endswith("_total")}
    assert totals == {TASK_NAME: 50}
