"""Spans arrive at a collector as they were made; one that is away holds nothing up for long."""

import time

import pytest

from rolloutpool_worker.capabilities.tracing.sender import Attributes, SpanSender, TraceSpan

TRACE, SPAN, PARENT = "0123456789abcdef0123456789abcdef", "0123456789abcdef", "fedcba9876543210"


def sent(endpoint: str, count: int = 1) -> None:
    sender = SpanSender(endpoint)
    for number in range(count):
        span_id = f"{int(SPAN, 16) + number:016x}"
        about: Attributes = {"n": 1, "name": "x"}
        sender.send(TraceSpan("chat", span_id, PARENT, 0.0, about, 2e-6, "network_error", is_call=True), TRACE, 1_000)
    sender.close()


def test_a_collector_that_is_away_costs_the_spans_and_little_time(caplog: pytest.LogCaptureFixture) -> None:
    start = time.monotonic()
    # More than the queue holds.
    sent("http://127.0.0.1:1", 5_000)
    # The SDK by itself takes half a minute.
    assert time.monotonic() - start < 15
    # Not a line for each.
    assert len(caplog.records) < 50
