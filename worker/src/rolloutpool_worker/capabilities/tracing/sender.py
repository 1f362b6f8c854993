"""SpanSender gives spans to OpenTelemetry. It is imported only where traces are sent (extra `otel`).

Spans are built when they are over, with ids and times of ours, and given to the SDK's batch processor. Its tracer would
choose the ids itself and keep each span open meanwhile.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

CLOSE_SECONDS = 2.0
"""How long a process that stops waits until its last spans are sent."""
SERVICE = "rolloutpool-worker"


Attributes = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """Says what happened, from when to when."""

    name: str
    span_id: str
    """Hex, like the other ids."""
    parent_id: str | None
    begun: float
    """On the clock `time.perf_counter`."""
    attributes: Attributes
    """Those that are None are left out."""
    ended: float = field(default_factory=time.perf_counter)
    error: str | None = None
    is_call: bool = False
    """Whether another process was called."""


class SpanSender:
    """Sends the spans of one process, from a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """Starts the thread."""
        address = endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
        # Any: some of the SDK's methods have no types.
        self._exporter: Any = OTLPSpanExporter(endpoint=address)
        self._processor: Any = BatchSpanProcessor(self._exporter)
        self._resource = Resource.create({"service.name": SERVICE})
        self._scope = InstrumentationScope("rolloutpool")

    def send(self, span: TraceSpan, trace_id: str, offset_ns: int) -> None:
        """Queues a span; where the queue is full, it is dropped. `offset_ns` leads from its clock to the wall's."""

        def context(of: str) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(of, 16), False, TraceFlags(TraceFlags.SAMPLED))

        known = {**span.attributes, "error.type": span.error}
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context(span.span_id),
                None if span.parent_id is None else context(span.parent_id),
                self._resource,
                {key: value for key, value in known.items() if value is not None},
                kind=SpanKind.CLIENT if span.is_call else SpanKind.INTERNAL,
                status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
                start_time=int(span.begun * 1e9) + offset_ns,
                end_time=int(span.ended * 1e9) + offset_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Sends what is left, within a few seconds. Blocks."""
        # The SDK's own flush has no time limit, and tries a collector that is away for ten seconds and more.
        flush = threading.Thread(target=self._processor.force_flush, name="last spans", daemon=True)
        flush.start()
        flush.join(CLOSE_SECONDS)
        # Ends an export that goes on, and all that would follow it.
        self._exporter.shutdown()
        self._processor.shutdown()
