"""Holds what our Flower uses of the package beyond its documented interface, so that an upgrade breaks this file alone.

- `flower.events.PrometheusMetrics.observe_task` counts each event of a task in series by the task's name. Ours are
  named by batch, and Flower never forgets a series, so its memory would grow with each batch.

`test_flower_compat.py` shows that the installed Flower still counts with it.
"""

from typing import Any

from flower.events import PrometheusMetrics

from rolloutpool_common.queue.celery_app import TASK_NAME


def count_under_one_name() -> None:
    """Has Flower's own metrics count all tickets under the task's name; its pages show the names by batch."""
    observe = PrometheusMetrics.observe_task

    def observe_unnamed(self: Any, worker: str, event: dict[str, Any], task: Any) -> None:
        observe(self, worker, {**event, "name": TASK_NAME}, task)

    setattr(PrometheusMetrics, "observe_task", observe_unnamed)  # noqa: B010  a function of another type, to mypy
