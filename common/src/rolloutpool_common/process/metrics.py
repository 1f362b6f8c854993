"""Metrics: what this process measures, kept in memory until its next report (`reporting.py`).

1. A metric is declared once, below. Any module observes it; that costs about a microsecond and no I/O.
2. Every few seconds `take_rows` empties all metrics into rows: (endpoint or "", field, whole number).
3. Redis adds the rows of all processes up (`store/measures.py`), so totals survive restarts and there is one scrape.
4. The API reads the sums with the same declarations (`rolloutpool_api.measured`).

Example: `MODEL_CALLS.observe(0.3, "ok", endpoint="http://t:8081")` becomes the rows
`("http://t:8081", "model_call_seconds|ok|3", 1)`, the fourth bucket, and `(…, "model_call_seconds|ok|sum", 300000)`.

Labels are our own words and the names of registered tools, graders and environments. Endpoints are chosen by callers,
so Redis admits a limited number of them, and the others count as `other`.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority

Row = tuple[str, str, int]
"""Endpoint or "", field of the sums in Redis, increment."""

OTHER = "other"
"""Stands for the endpoints that are too many to have series of their own."""
SEPARATOR = "|"
SUM = "sum"
"""The part of a histogram's field that stands in the place of the bucket's number."""
MICRO = 1_000_000
"""Redis adds whole numbers, so seconds are sent in microseconds."""
MOST_CELLS = 2_000
"""Combinations of labels that one process keeps until its report; a caller could make any number of endpoints."""
LONGEST_LABEL = 100


class Buckets(NamedTuple):
    """Says how the values of a histogram are counted."""

    bounds: Sequence[float]
    """Their upper bounds; the last bucket, without a bound, is added."""
    scale: int = MICRO
    """By what the sum is multiplied for Redis."""


LONG = Buckets((0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 15, 30, 60, 120, 300, 900, 3600))
"""Seconds of rollouts and model calls."""
SHORT = Buckets((0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
"""Seconds of what should take milliseconds."""
TURNS = Buckets((1, 2, 4, 8, 16, 32, 64, 128, 256), scale=1)
TOKENS = Buckets([1024 * 2**n for n in range(11)], scale=1)
VERSIONS = Buckets((0, 1, 2, 3, 5, 10, 20, 50, 100), scale=1)

Key = tuple[str, tuple[str, ...]]


class Metric:
    """A name with labels. Any thread may observe it."""

    all: ClassVar[list["Metric"]] = []

    def __init__(
        self,
        name: str,
        text: str,
        *labels: str,
        known: Iterable[tuple[str, ...]] = (),
        by_endpoint: bool = False,
        scale: int = 1,
    ) -> None:
        """Declares it; all that are declared are reported."""
        self.name = name
        self.text = text
        self.labels = labels
        self.known = tuple(known)
        self.by_endpoint = by_endpoint
        self.scale = scale
        self._lock = threading.Lock()
        Metric.all.append(self)

    def rows(self) -> Iterator[Row]:
        """Empties the metric; yields what was in it."""
        raise NotImplementedError

    def _field(self, *parts: str) -> str:
        return SEPARATOR.join((self.name, *map(_clean, parts)))


class Calls(NamedTuple):
    """Says that the counts of a histogram are a counter as well."""

    name: str
    text: str
    outcomes: Sequence[str]
    """The last label's values that it has from the first call on, so that a rate sees the first failure too."""


class Histogram(Metric):
    """How often a value was how large."""

    def __init__(
        self,
        name: str,
        text: str,
        *labels: str,
        buckets: Buckets,
        known: Iterable[tuple[str, ...]] = (),
        by_endpoint: bool = False,
        calls: Calls | None = None,
    ) -> None:
        """Declares it."""
        super().__init__(name, text, *labels, known=known, by_endpoint=by_endpoint, scale=buckets.scale)
        self.bounds = buckets.bounds
        self.calls = calls
        self._cells: dict[Key, list[float]] = {}

    def observe(self, value: float, *labels: str, endpoint: str = "") -> None:
        """Counts a value."""
        key = (endpoint, labels)
        with self._lock:
            cell = self._cells.get(key)
            if cell is None:
                if len(self._cells) >= MOST_CELLS:
                    key = (OTHER if endpoint else "", labels)
                # A count for each bucket, then the sum.
                cell = self._cells.setdefault(key, [0.0] * (len(self.bounds) + 2))
            cell[bisect_left(self.bounds, value)] += 1
            cell[-1] += value

    def rows(self) -> Iterator[Row]:
        """Empties the metric; yields a row for each bucket with something in it, and one for the sum."""
        with self._lock:
            cells, self._cells = self._cells, {}
        for (endpoint, labels), (*counts, total) in cells.items():
            for bucket, count in enumerate(counts):
                if count:
                    yield endpoint, self._field(*labels, str(bucket)), int(count)
            if total:
                yield endpoint, self._field(*labels, SUM), round(total * self.scale)


class Counted(Metric):
    """A number that only grows."""

    def __init__(
        self, name: str, text: str, *labels: str, known: Iterable[tuple[str, ...]] = (), scale: int = 1
    ) -> None:
        super().__init__(name, text, *labels, known=known, scale=scale)
        self._cells: dict[tuple[str, ...], float] = {}

    def add(self, value: float, *labels: str) -> None:
        """Adds a value, which is not negative."""
        with self._lock:
            if labels in self._cells or len(self._cells) < MOST_CELLS:
                self._cells[labels] = self._cells.get(labels, 0.0) + value

    def rows(self) -> Iterator[Row]:
        """Empties the metric; yields a row for each combination of labels."""
        with self._lock:
            cells, self._cells = self._cells, {}
        for labels, value in cells.items():
            if value:
                yield "", self._field(*labels), round(value * self.scale)


class Level:
    """How many there are at this moment: `with LEVEL:` counts one while the block lasts. For one event loop."""

    all: ClassVar[dict[str, "Level"]] = {}
    """By the name under which a process reports it."""

    def __init__(self, name: str, *, phase: bool = False) -> None:
        """Declares it; all that are declared are reported. `phase`: a rollout in flight is in one of these."""
        self.now = 0
        self.is_phase = phase
        Level.all[name] = self

    def __enter__(self) -> None:
        """One more."""
        self.now += 1

    def __exit__(self, *_: object) -> None:
        """One less."""
        self.now -= 1


class Largest:
    """Reads the largest value at this moment, when the process reports. For one event loop."""

    all: ClassVar[dict[str, "Largest"]] = {}
    """By the name under which a process reports it."""

    def __init__(self, reported: str, name: str, text: str) -> None:
        """Declares it, with the name and the text of its metric; all that are declared are reported."""
        self.name, self.text = name, text
        self.read: Callable[[], float] = float
        """Set by the part of the process that knows it."""
        Largest.all[reported] = self


def histograms() -> list[Histogram]:
    """Returns all histograms that are declared, those of capabilities too."""
    return [metric for metric in Metric.all if isinstance(metric, Histogram)]


def counted() -> list[Counted]:
    """Returns all numbers that only grow, likewise."""
    return [metric for metric in Metric.all if isinstance(metric, Counted)]


def take_rows() -> list[Row]:
    """Empties all metrics of this process; returns what was in them."""
    return [row for metric in Metric.all for row in metric.rows()]


def _clean(text: str) -> str:
    shown = "".join(c if c.isprintable() and c != SEPARATOR else "?" for c in text[:LONGEST_LABEL])
    return shown or "?"


QUEUE_SECONDS = Histogram(
    "rollout_queue_seconds",
    "From a rollout's acceptance to its first claim by a worker.",
    "priority",
    buckets=LONG,
    known=[(priority.value,) for priority in Priority],
)
DURATION_SECONDS = Histogram(
    "rollout_duration_seconds",
    "From the last claim of a rollout to its end, of rollouts that a worker ended.",
    "status",
    buckets=LONG,
    known=[(status.value,) for status in RolloutStatus if status.terminal],
)
ROLLOUT_TURNS = Histogram("rollout_turns", "Model calls of a rollout.", buckets=TURNS, known=[()])
CONTEXT_TOKENS = Histogram(
    "rollout_context_tokens", "Longest prompt with its reply of a rollout.", buckets=TOKENS, known=[()]
)
VERSION_LAG = Histogram(
    "policy_version_lag",
    "How far the first turn's policy version was behind the newest that the worker had seen, at a rollout's end.",
    buckets=VERSIONS,
    known=[()],
)
MODEL_OUTCOMES = ("ok", "refused", "timeout", "broken", "4xx", "429", "5xx")
"""Those that every trainer can cause; there are a few more."""
TOOL_OUTCOMES = ("ok", "error")
MODEL_CALLS = Histogram(
    "model_call_seconds",
    "Calls of trainers, by how they ended.",
    "outcome",
    buckets=LONG,
    by_endpoint=True,
    calls=Calls("model_calls", "Calls of trainers, repetitions included.", MODEL_OUTCOMES),
)
TOOL_CALLS = Histogram(
    "tool_call_seconds",
    "Tool calls, by how they ended.",
    "tool",
    "outcome",
    buckets=LONG,
    calls=Calls("tool_calls", "Calls of tools.", TOOL_OUTCOMES),
)
ENVIRONMENT_OUTCOMES = ("ok", "refused", "full", "timeout", "error", "cancelled")
"""`refused`: it said no to a call or a task. `full`: it has no room now."""
ENVIRONMENT_CALLS = Histogram(
    "environment_call_seconds",
    "What environments were asked, by how it ended.",
    "environment",
    "what",
    "outcome",
    buckets=LONG,
    calls=Calls("environment_calls", "What environments were asked.", ENVIRONMENT_OUTCOMES),
)
RENDER_SECONDS = Histogram(
    "render_seconds", "Rendering and counting what follows a turn, waits included.", buckets=SHORT, known=[()]
)
PHASE_SECONDS = Counted(
    "time_seconds",
    "What ended rollouts spent their time with.",
    "phase",
    known=[("queue",), ("tokenizer",), ("model",), ("tool",)],
    scale=MICRO,
)
LOOP_LAG = Histogram("event_loop_lag_seconds", "How late the event loop ran a timer.", "component", buckets=SHORT)
STORE_SECONDS = Histogram(
    "redis_seconds", "Calls of Redis by script, from the caller to its answer.", "script", buckets=SHORT
)
RECONCILE_SECONDS = Histogram("reconcile_seconds", "Rounds of the reconciler.", buckets=SHORT, known=[()])
HTTP_SECONDS = Histogram(
    "http_request_seconds",
    "Requests that were answered without waiting for a rollout.",
    "route",
    "method",
    buckets=SHORT,
)
HTTP_REQUESTS = Counted("http_requests", "Requests that were answered.", "route", "method", "code")
CPU_SECONDS = Counted("process_cpu_seconds", "CPU time of the pool's processes.", "component", scale=MICRO)
GC_COLLECTIONS = Counted("gc_collections", "Rounds of Python's garbage collector.", "component", "generation")

IN_MODEL_CALL = Level("model", phase=True)
IN_TOOLS = Level("tool", phase=True)
IN_PAUSE = Level("pause", phase=True)
SESSIONS = Level("sessions")
LONG_POLLS = Level("long_polls")
EVENT_STREAMS = Level("event_streams")
