"""A load for a system, and what the system took for it. All systems run the same rollouts against one stub trainer."""

from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.cpu import POOL_ROLES

SPREAD = 0.2
"""Latencies differ by this much around their mean. With one for all, rollouts move in waves, and what would be measured
is how many waves there were."""
SLOW_EVERY = 20
"""One rollout in so many is a straggler, where a load has any."""


class TrainerManner(StrEnum):
    """What a trainer does with the ids that it has sampled, and whether it says so."""

    DECLARES = "declares"
    """It keeps them, and says so."""
    SILENT = "silent"
    """It keeps them and says nothing, as trainers of the founding protocol do."""
    RERENDERS = "rerenders"
    """It renders the whole history again for each turn, gets other ids than it had sampled, and says nothing."""


class System(StrEnum):
    """A system that runs rollouts."""

    POOL = "pool"
    """Ours: API, workers, Redis. Batches, and a trainer that declares that it keeps ids."""
    POOL_SILENT = "pool-silent"
    """Ours: batches, and a trainer that declares nothing."""
    POOL_V1 = "pool-v1"
    """Ours: each rollout by `POST /rollout`, and a trainer that declares nothing."""
    POOL_RERENDER = "pool-rerender"
    """Ours: each rollout by `POST /rollout`, and a trainer that renders history again."""
    FOUNDING = "founding"
    """The founding notes' pattern, one process."""
    IDEAL_HTTPX = "ideal-httpx"
    """Bare asyncio with the workers' HTTP client, one process."""
    IDEAL_RAW = "ideal-raw"
    """Bare asyncio with bare connections, one process."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose CPU time is the system's own cost."""
        return POOL_ROLES if self.is_pool else ("founding",) if self is System.FOUNDING else ("load",)

    @property
    def is_pool(self) -> bool:
        """Whether it is ours."""
        return self in (System.POOL, System.POOL_SILENT, System.POOL_V1, System.POOL_RERENDER)

    @property
    def trainer(self) -> TrainerManner:
        """The trainer that its rollouts call."""
        # The founding pattern renders the prompts itself and reads nothing that a trainer declares.
        silent = {System.POOL_RERENDER: TrainerManner.RERENDERS, System.POOL: TrainerManner.DECLARES}
        return silent.get(self, TrainerManner.SILENT)


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
    trainer: TrainerManner = TrainerManner.DECLARES
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
