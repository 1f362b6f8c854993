"""What is asked of a system, and what that took. Every system runs the same rollouts against the same stub trainer."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.cpu import POOL_ROLES

__all__ = ["Load", "Measured"]


@dataclass(frozen=True, kw_only=True)
class Load:
    """Rollouts of one kind."""

    turns: int
    in_flight: int
    latency_ms: int
    """How long the model takes per turn."""
    rollouts: int

    def warm_up(self) -> "Load":
        """Enough of the same to fill connections and caches: each slot once."""
        return replace(self, rollouts=min(self.rollouts, 2 * self.in_flight))


@dataclass(frozen=True)
class Measured:
    """One run of a load on one system."""

    system: str
    load: Load
    seconds: float
    """Wall time from the first request to the last result."""
    cpu_seconds: dict[str, float]
    """CPU time by role."""

    @property
    def per_second(self) -> float:
        """Rollouts."""
        return self.load.rollouts / self.seconds

    def cpu_ms(self, *roles: str) -> float:
        """CPU milliseconds per rollout of these roles together."""
        return sum(self.cpu_seconds.get(role, 0.0) for role in roles) * 1000 / self.load.rollouts

    @property
    def own_cpu_ms(self) -> float:
        """What the system itself costs per rollout: neither trainer nor load generator."""
        return self.cpu_ms(*(POOL_ROLES if self.system == "pool" else (self.system,)))

    @property
    def others_share(self) -> float:
        """The part of all CPU time that went into trainer and load generator, 0…1."""
        total = sum(self.cpu_seconds.values())
        return (self.cpu_seconds.get("stub", 0.0) + self.cpu_seconds.get("load", 0.0)) / total if total else 0.0

    def row(self) -> dict[str, Any]:
        """For the report."""
        return {
            "system": self.system,
            **asdict(self.load),
            "seconds": round(self.seconds, 3),
            "rollouts_per_second": round(self.per_second, 2),
            "cpu_ms_per_rollout": round(self.own_cpu_ms, 3),
            "cpu_ms_by_role": {role: round(self.cpu_ms(role), 3) for role in sorted(self.cpu_seconds)},
            "trainer_and_load_share": round(self.others_share, 3),
        }
