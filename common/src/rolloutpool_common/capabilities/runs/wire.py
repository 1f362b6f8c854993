"""Runs: what a trainer says of its weights, and what the pool does with rollouts whose weights are too old.

A run is the name that batches of one training run share, of one owner. Its trainer announces the version of its newest
weights, a decimal integer, and pauses the run around a weight update.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rolloutpool_common.protocol.answer import Answer, is_none

LONGEST_RUN = 128
"""Characters of a run's name."""
_DIGITS = 15
"""So that Redis' scripts, which count in doubles, compare versions exactly."""


class OnStale(StrEnum):
    """Says what happens to a rollout that is sampled by weights older than `max_staleness` allows."""

    DROP = "drop"
    """It ends `cancelled`, with the finish reason `stale`, and nothing of it is delivered."""
    FINISH = "finish"
    """It runs to its end, and its result says that it is stale."""
    RESTART = "restart"
    """It begins again with the newest weights, three times at most, then it is dropped. Engines only."""


class StaleEnd(StrEnum):
    """Says what became of a rollout that was stale at its end."""

    NOT_STARTED = "not_started"
    """It was dropped when a worker took it from the queue again."""
    DROPPED = "dropped"
    """It was dropped while it ran."""
    FINISHED = "finished"
    """It ran to its end."""


class StaleVersions(BaseModel):
    """Says which weights a rollout had that was too old, and which its batch allowed then."""

    model_config = ConfigDict(frozen=True)

    sampled: int
    """The oldest version that sampled it; the run's when its attempt began, where nothing was sampled yet."""
    run: int
    """The version of its run when it was compared last."""
    allowed: int
    """The oldest version that the batch allowed then: the run's minus `max_staleness`."""

    @property
    def message(self) -> str:
        """Says it in one line."""
        return f"sampled by version {self.sampled}; the run is at {self.run}, and version {self.allowed} is allowed"


class StalenessLimit(BaseModel):
    """Holds what a batch may ask for."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many versions the run may be ahead of the oldest weights that sampled a rollout; needs `run`. Null: any."""
    on_stale: OnStale = OnStale.DROP
    """What happens to a rollout that is older: `drop`, `finish` or `restart`."""


class StaleCounts(BaseModel):
    """Holds what the state of a batch says."""

    stale: dict[str, int] = Field(default_factory=dict)
    """How many rollouts were too old for `max_staleness`, by what became of them; how often one was `restarted`."""


class StalenessReport(BaseModel):
    """Holds what a result says of its weights."""

    staleness: int | None = None
    """How many versions its run was ahead of the oldest weights that sampled it, when it ended; null where that is not
    known."""
    stale: StaleEnd | None = None
    """What became of it because that was more than its batch allows, or null."""
    stale_versions: StaleVersions | None = Field(default=None, exclude_if=is_none)
    """The versions of a rollout that was too old; left out of others."""


def _decimal(value: Any) -> Any:
    text = str(value) if type(value) is int else value
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"must be a decimal integer from 0 on, of at most {_DIGITS} digits")
    if text != str(int(text)):
        raise ValueError("must be a decimal integer without leading zeros")
    return int(text)


class PolicyVersionRequest(BaseModel):
    """`PUT /v1/runs/{run}/policy_version`."""

    model_config = ConfigDict(extra="forbid")

    policy_version: Annotated[int, BeforeValidator(_decimal)]
    """Of the weights that sample from now on; as a number, or as the same digits in a string."""
    rollback: bool = False
    """Accepts a version below the announced one, for a trainer that went back to an earlier checkpoint."""


class RunState(Answer):
    """`GET /v1/runs/{run}`, and the answer to every change of it."""

    run: str = Field(max_length=LONGEST_RUN)
    policy_version: int | None
    """As the trainer announced it last."""
    reported_version: int | None
    """The newest that the run's rollouts were sampled by; it counts where none was announced."""
    announced_at: datetime | None
    paused_at: datetime | None
    """Null where the run is not paused."""
    pause_left_s: float | None
    """Seconds until the paused run is ended, while the pool serves; null where it is not paused."""
