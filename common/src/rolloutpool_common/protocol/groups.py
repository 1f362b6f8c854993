"""Groups: the rollouts of one prompt, and when a trainer may take them although some have not ended.

1. A batch may name a `GroupPolicy`. Each of its groups starts with the verdict `open`.
2. When `min_usable` rollouts of a group have completed, its verdict becomes `usable`.
3. When so many have failed that `min_usable` can no longer be reached, it becomes `dropped`.
4. A verdict that is not `open` stays. `late` says what happens to the rollouts that are still running.

Example: with `size=8, min_usable=6`, a group is usable at the sixth completed rollout and dropped at the third failed.
"""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS


class LateRollouts(StrEnum):
    """Says what happens to the other rollouts of a group once its verdict is known."""

    KEEP = "keep"
    """They run to their end and are delivered."""
    CANCEL = "cancel"
    """They are cancelled."""


class GroupPolicy(BaseModel):
    """When a trainer may take a group although it is not complete."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int | None = Field(default=None, ge=1, le=MAX_ROLLOUTS)
    """How many rollouts each group must have in this request; null accepts any number."""
    min_usable: int = Field(ge=1, le=MAX_ROLLOUTS)
    """This many completed rollouts make a group usable; a group that can't reach it any more is dropped."""
    late: LateRollouts = LateRollouts.KEEP
    """What happens to the rollouts that are still running then."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.size is not None and self.min_usable > self.size:
            raise ValueError(f"min_usable {self.min_usable} can't be reached by groups of {self.size}")
        return self


class GroupVerdict(StrEnum):
    """Whether a group can be used for training."""

    OPEN = "open"
    """Not known yet."""
    USABLE = "usable"
    """`min_usable` rollouts have completed."""
    DROPPED = "dropped"
    """`min_usable` can't be reached any more."""


class Group(Answer):
    """Says where a group of a batch with a group policy stands."""

    model_config = ConfigDict(frozen=True)

    group: str
    """Its name, as the batch gave it."""
    size: int
    """How many rollouts it has."""
    completed: int
    failed: int
    cancelled: int
    expired: int
    verdict: GroupVerdict
    """Once it is not `open`, it stays."""


class Groups(Answer):
    """`GET /v1/batches/{id}/groups`: all groups of a batch with a group policy, in order of name."""

    groups: list[Group]
