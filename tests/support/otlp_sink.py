"""A collector: takes spans as OTLP over HTTP, parsed by OpenTelemetry's own protobuf types."""

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.support.threaded_server import QuietHandler, serving


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the root."""
    begun_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class Collector:
    """What came so far."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, prefix: str) -> list[Received]:
        """The spans whose name begins so, by their start."""
        return sorted((span for span in self.spans if span.name.startswith(prefix)), key=lambda span: span.begun_ns)


@contextlib.contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """A collector on a free port that answers with this status."""
    found = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            found.raw.append(body)
            found.paths.add(self.path)
            found.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Handler) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value") for a in span.attributes},
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )
