"""The points that are measured. Each changes one factor of: 100 in flight, 3 turns, a model that takes no time.

Of long conversations only 32 run at once, because the founding pattern takes seconds for each of them. The protocol
allows 100 turns at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.load import Load, System

from rolloutpool_common.rendering import TINY

ALL = tuple(System)
OURS = tuple(system for system in System if system.is_pool)
PAIRED = (*OURS, System.FOUNDING)
"""All ways into the pool, and what they are compared with."""
LEAD = (System.POOL, System.POOL_V1, System.FOUNDING)
"""The same with the two ways that most trainers take: batches, and `POST /rollout` without a declaration."""
RESULT = 2000
"""Characters of a tool's result. These are 500 tokens, about as many per turn as in what a trainer reported
(huggingface/trl#6250: 69,000 tokens after 128 turns)."""
LONG = 32
"""From so many turns on a conversation is long."""
_TURN_MS = {
    **dict.fromkeys(OURS, 1.2),
    System.POOL: 0.9,
    System.FOUNDING: 2.0,
    System.IDEAL_HTTPX: 0.5,
    System.IDEAL_RAW: 0.03,
}
"""Roughly; only for how many rollouts to run."""
_RENDER_MS = 0.1
"""The founding pattern's further cost per turn and turn before it, as roughly."""
_THOUSAND_MS = {**dict.fromkeys(OURS, 0.6), System.FOUNDING: 5.0, System.IDEAL_HTTPX: 0.1, System.IDEAL_RAW: 0.1}
"""Further cost of a turn by a thousand characters in each result, as roughly."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One comparison."""

    experiment: str
    """What is varied."""
    turns: int = 3
    in_flight: int = 100
    latency_ms: int = 0
    result_characters: int = 0
    slow_ms: int | None = None
    workers: int = 2
    tickets_of: int = 8
    """Rollouts per message; the default of the settings."""
    systems: tuple[System, ...] = ALL
    rollouts: int | None = None
    """How many; None: by how long they take."""
    tokenizer: str = TINY
    """Of everybody; a directory, or the name of the tiny one."""

    def load(self, system: System, seconds: float) -> Load:
        """Returns a load that takes this system about so many seconds, with enough rollouts for a rate."""
        cost_ms = (_TURN_MS[system] + _THOUSAND_MS[system] * self.result_characters / 1000) * self.turns
        if system is System.FOUNDING:
            cost_ms += _RENDER_MS * self.turns * self.turns
        if system.is_pool:
            cost_ms /= min(self.workers, 2)
        if self.rollouts is not None:
            return self._load(self.rollouts, system)
        per_second = 1000 / max(cost_ms, self.turns * self.latency_ms / self.in_flight)
        least = 2 * self.in_flight
        if self.turns >= LONG:
            # The founding pattern's all advance together; the pool's come and go, and its slots are empty at the end.
            least = 4 * self.in_flight if system.is_pool else self.in_flight if system is System.FOUNDING else least
        if self.latency_ms * self.turns >= 1000 * seconds / 4:
            # The same number for everybody: the last ones run in less and less company.
            per_second, least = 0.0, 5 * self.in_flight
        return self._load(min(max(int(per_second * seconds), least), 10_000), system)

    def _load(self, rollouts: int, system: System) -> Load:
        return Load(
            turns=self.turns,
            in_flight=self.in_flight,
            latency_ms=self.latency_ms,
            result_characters=self.result_characters,
            slow_ms=self.slow_ms,
            trainer=system.trainer,
            rollouts=rollouts,
        )


# Long enough that its start and its end, when slots are empty, are a small part. The founding pattern would take
# minutes.
CROWD = Point(
    experiment="latency", in_flight=1000, latency_ms=1000, rollouts=10_000, systems=(System.POOL, System.IDEAL_RAW)
)


def points(real: str | None) -> Iterator[Point]:
    """Returns points that change one factor at a time, with the tokenizer in the directory `real` if there is one."""
    for point in _points():
        yield replace(point, tokenizer=real or TINY)


def _points() -> Iterator[Point]:
    yield Point(experiment="in flight", in_flight=1, workers=1, systems=LEAD)
    yield Point(experiment="in flight")
    yield Point(experiment="in flight", in_flight=500, systems=LEAD)
    yield Point(experiment="turns", turns=8, systems=LEAD)
    yield Point(experiment="turns", turns=64, in_flight=32, systems=(*PAIRED, System.IDEAL_HTTPX))
    yield Point(experiment="results", turns=64, in_flight=32, result_characters=RESULT, systems=PAIRED)
    yield Point(experiment="latency", latency_ms=1000, systems=(*LEAD, System.IDEAL_RAW))
    yield CROWD
    yield Point(experiment="tickets", tickets_of=1, systems=(System.POOL, System.FOUNDING))
    for tickets_of in (1, 8):
        yield Point(experiment="stragglers", latency_ms=20, slow_ms=400, tickets_of=tickets_of, systems=(System.POOL,))
    for workers in (1, 2, 3, 4):
        yield Point(experiment="workers", workers=workers, systems=(System.POOL,))


def few_points(real: str | None) -> Iterator[Point]:
    """Returns the points that budgets need."""
    for point in (
        Point(experiment="in flight"),
        Point(experiment="tickets", tickets_of=1, systems=PAIRED),
        Point(experiment="turns", turns=64, in_flight=32, systems=PAIRED),
        Point(experiment="results", turns=64, in_flight=32, result_characters=RESULT, systems=PAIRED),
        Point(experiment="latency", latency_ms=1000, systems=(*PAIRED, System.IDEAL_RAW)),
        CROWD,
    ):
        yield replace(point, tokenizer=real or TINY)


def every_point() -> Iterator[Point]:
    """Returns all combinations; they take hours."""
    for turns, in_flight, latency_ms in product((2, 3, 8, 32, 64, 100), (1, 32, 100, 500, 1000), (0, 50, 1000)):
        yield Point(experiment="all", turns=turns, in_flight=in_flight, latency_ms=latency_ms)
