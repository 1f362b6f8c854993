"""Annotations: what a trainer knows of its rollouts afterwards, kept with them for people to look at.

A *scalar* is a number for a rollout, such as its reward. A *stream* is a number for each token of each sample's
response, such as advantages or the trainer's own log-probabilities; null stands for a token without one. Annotations
are only added: where a name comes again for a rollout, the later value is shown. A *regrade* adds grades of rollouts
that have ended, made again or by another grader.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS

MAX_NAMES = 64
"""Names of scalars in one batch."""

AnnotationName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
# With larger ones, sums and squares for the statistics could overflow.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e30, le=1e30)]


class AnnotationItem(BaseModel):
    """Holds what is said of one rollout."""

    model_config = ConfigDict(extra="forbid")

    rollout: Annotated[int, Field(strict=True, ge=0)] | str
    """Its uid, or its index in the batch."""
    scalars: dict[AnnotationName, Number] = Field(default_factory=dict, max_length=MAX_NAMES)
    streams: dict[AnnotationName, list[list[Number | None]]] = Field(default_factory=dict, max_length=MAX_NAMES)
    """By name, a list for each sample, as long as its `response_ids`. The rollout must have ended."""


class AnnotationRequest(BaseModel):
    """`POST /v1/batches/{id}/annotations`."""

    model_config = ConfigDict(extra="forbid")

    items: list[AnnotationItem] = Field(min_length=1, max_length=MAX_ROLLOUTS)


class AnnotationsAccepted(Answer):
    """The answer: the annotations are durable."""

    batch_id: str
    bytes_used: int
    """What the annotations of this batch take, as they are stored."""
    bytes_left: int


class RolloutAnnotations(Answer):
    """`GET /v1/rollouts/{uid}/annotations`."""

    uid: str
    scalars: dict[str, float]
    streams: dict[str, list[list[float | None]]]


class GroupStatistics(Answer):
    """The figures of one group, and of one annotation in it."""

    group: str
    size: int
    ended: int
    completed: int
    sampled_tokens: float | None
    """Mean over the rollouts that have ended; null where none has."""
    annotated: int
    """Rollouts that have the annotation; the figures below are null where none has."""
    mean: float | None
    deviation: float | None
    """Standard deviation over the group, the whole of it (divided by n)."""
    min: float | None
    max: float | None
    zero_spread: bool
    """Whether at least two have it and all values are equal: such a group teaches nothing."""


class GroupStatisticsList(Answer):
    """`GET /v1/batches/{id}/group-statistics`."""

    of: str
    """The annotation."""
    groups: list[GroupStatistics]
    """In order of name; rollouts without a group are in none."""
    zero_spread: int
    """How many groups have no spread."""


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
