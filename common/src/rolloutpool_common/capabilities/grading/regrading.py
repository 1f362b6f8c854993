"""Regrades: grades of rollouts that have ended, made again or by another grader, and kept as annotations."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rolloutpool_common.capabilities.grading.annotating import AnnotationName
from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS


class RegradeRequest(BaseModel):
    """`POST /v1/batches/{id}/regrades`."""

    model_config = ConfigDict(extra="forbid")

    grader: GraderChoice
    """Its `deadline_seconds` and `retries` hold for each rollout, or for each group."""
    rollouts: list[Annotated[int, Field(strict=True, ge=0)] | str] | None = Field(
        default=None, min_length=1, max_length=MAX_ROLLOUTS
    )
    """Uids, or indexes in the batch; null takes all of it. Only those whose conversation is complete are graded."""
    annotation: AnnotationName = "reward"
    """The name under which rewards are kept; parts have it in front of theirs, rewards per token are a stream."""


class RegradeState(StrEnum):
    """Says where a regrade stands."""

    RUNNING = "running"
    """Some of its rollouts were not looked at yet."""
    COMPLETE = "complete"
    """All were. What could be graded has its annotation."""


class Regrade(Answer):
    """The answer to the request, and `GET /v1/batches/{id}/regrades/{regrade_id}`."""

    regrade_id: str
    batch_id: str
    grader: str
    annotation: str
    state: RegradeState
    total: int
    """Rollouts that were asked for."""
    graded: int = 0
    left_out: int = 0
    """Their conversations are not complete."""
    failures: dict[str, int] = Field(default_factory=dict)
    """How many have no grade, by category."""

    @property
    def done(self) -> int:
        """How many were looked at."""
        return self.graded + self.left_out + sum(self.failures.values())
