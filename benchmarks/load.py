"""A load for a system, and what the system took for it. All systems run the same rollouts against one stub trainer."""

from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.cpu import POOL_ROLES

__all__ = ["Load", "Measured", "System"]

SPREAD = 0.2
"""Latencies differ by this much around their mean. With one for all, rollouts move in waves, and what would be measured
is how many waves there were."""
SLOW_EVERY = 20
"""One rollout in so many is a straggler, where a load has any."""


class System(StrEnum):
    """A system that runs rollouts."""

    POOL = "pool"
    """Ours: API, workers, Redis."""
    FOUNDING = "founding"
    """The founding notes' pattern, one process."""
    IDEAL_HTTPX = "ideal-httpx"
    """Bare asyncio with the workers' HTTP client, one process."""
    IDEAL_RAW = "ideal-raw"
    """Bare asyncio with bare connections, one process."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose CPU time is the system's own cost."""
        return {System.POOL: POOL_ROLES, System.FOUNDING: ("founding",)}.get(self, ("load",))


@dataclass(frozen=True, kw_only=True)
class Load:
    """Rollouts of one kind."""

    turns: int
    in_flight: int
    latency_ms: int
    """How long the model takes per turn."""
    rollouts: int
    result_characters: int = 0
    """Length of a tool's result; 0 for a calculator's, of two or three characters."""
    slow_ms: int | None = None
    """How long it takes per turn of every `SLOW_EVERY`th rollout."""

    def latency_of(self, serial: int) -> int:
        """Returns how long the model takes per turn of one rollout, in milliseconds."""
        mean = self.slow_ms if self.slow_ms is not None and serial % SLOW_EVERY == 0 else self.latency_ms
        # The golden ratio spreads any number of serials evenly.
        return round(mean * (1 - SPREAD + 2 * SPREAD * (serial * 0.6180339887 % 1)))

    def with_rollouts(self, rollouts: int) -> "Load":
        """Returns the same load with another number of rollouts."""
        return replace(self, rollouts=rollouts)


@dataclass(frozen=True)
class Measured:
    """One run of a load on one system."""

    system: System
    load: Load
    seconds: float
    """Wall time from the first request to the last result."""
    cpu_seconds: dict[str, float]
    """CPU time by role."""

    @property
    def per_second(self) -> float:
        """Rollouts per second."""
        return self.load.rollouts / self.seconds

    def cpu_ms(self, *roles: str) -> float:
        """Returns the CPU milliseconds per rollout of these roles together."""
        return sum(self.cpu_seconds.get(role, 0.0) for role in roles) * 1000 / self.load.rollouts

    @property
    def own_cpu_ms(self) -> float:
        """CPU milliseconds per rollout of the system itself, without trainer and load generator."""
        return self.cpu_ms(*self.system.roles)

    @property
    def others_share(self) -> float:
        """The share of trainer and load generator in all measured CPU time, 0 to 1."""
        total = sum(self.cpu_seconds.values())
        others = {"stub", "load"}.difference(self.system.roles)
        return sum(self.cpu_seconds.get(role, 0.0) for role in others) / total if total else 0.0
