"""An attempt has one line each for its start, its end and its return to the queue."""

import contextvars
import logging
from dataclasses import replace

import pytest
from tests.support.batches import claim, result_of, submit

from rolloutpool_common.process import logs
from rolloutpool_common.process.metrics import take_rows
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.result import Spans
from rolloutpool_common.protocol.trace import trace_id_of
from rolloutpool_common.store import Store
from rolloutpool_worker.ending import Action, Decision, TicketOutcome
from rolloutpool_worker.rollout.attempt_log import log_end, log_requeue, log_start


async def test_lines_have_names_and_fields(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    held = await claim(store, (await submit(store))[0])
    bound: dict[str, object] = {}

    def attempt() -> None:
        log_start(held)
        log_start(replace(held, attempt=2))
        log_end(result_of(held))
        log_requeue(Decision(Action.REQUEUE, TicketOutcome.STOPPED, delay_s=2.0), "worker_fault: lost")
        log_requeue(Decision(Action.DEFER, TicketOutcome.STOPPED, delay_s=10.0), "closed")
        bound.update(logs._bound.get())

    with caplog.at_level(logging.INFO):
        contextvars.copy_context().run(attempt)
    assert [record.getMessage() for record in caplog.records] == [
        "rollout started",
        "rollout ended",
        "rollout requeued",
    ]
    fields = [getattr(record, "event_fields") for record in caplog.records]  # noqa: B009
    assert fields[1]["status"] == "completed"
    assert fields[2] == {"action": "requeue", "delay_s": 2.0, "why": "worker_fault: lost"}
    assert bound == {
        "rollout_uid": held.uid,
        "batch_id": held.batch_id,
        "attempt": 2,
        "worker_id": held.worker_id,
        "trace_id": trace_id_of(held.uid),
    }


async def test_an_attempt_is_measured(store: Store) -> None:
    held = await claim(store, (await submit(store, priority=Priority.HIGH))[0])
    assert held.priority is Priority.HIGH
    spans = Spans(queued_ms=200, tokenizer_ms=30, llm_ms=4000, tools_ms=500, total_ms=7000)
    take_rows()

    def attempts() -> None:
        log_start(held)
        # A second attempt has not waited since the acceptance of its rollout.
        log_start(replace(held, attempt=2))
        log_end(result_of(held, num_llm_calls=3, max_context_tokens=3000, spans=spans), 4)

    contextvars.copy_context().run(attempts)
    rows = {field: n for _, field, n in take_rows() if not field.startswith("redis_")}
    queued = rows.pop("rollout_queue_seconds|high|sum", 0)
    assert abs(queued - held.queued_ms * 1000) < 2
    assert sum(n for field, n in rows.items() if field.startswith("rollout_queue_seconds")) == 1
    assert {field: n for field, n in rows.items() if not field.startswith("rollout_queue_seconds")} == {
        "rollout_duration_seconds|completed|7": 1,
        "rollout_duration_seconds|completed|sum": 7_000_000,
        "rollout_turns|2": 1,
        "rollout_turns|sum": 3,
        "rollout_context_tokens|2": 1,
        "rollout_context_tokens|sum": 3000,
        "policy_version_lag|4": 1,
        "policy_version_lag|sum": 4,
        "time_seconds|queue": 200_000,
        "time_seconds|tokenizer": 30_000,
        "time_seconds|model": 4_000_000,
        "time_seconds|tool": 500_000,
    }
