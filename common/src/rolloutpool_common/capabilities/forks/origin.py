"""Where a fork has left its parent: the fields that forks add to a rollout's options and to its result."""

from pydantic import BaseModel, ConfigDict, Field


class ForkOrigin(BaseModel):
    """Says where a fork began."""

    model_config = ConfigDict(frozen=True)

    uid: str
    """The rollout that it was forked from, its parent."""
    turn: int = Field(ge=1)
    """The first turn that the fork has sampled itself; those before it are the parent's."""
    train_trunk: bool = False
    """Whether the parent's turns are trained in the fork too. They have mask 1 in the parent's samples already."""


class ForkField(BaseModel):
    """Of a rollout as a worker runs it."""

    fork: ForkOrigin | None = None
    """Where it leaves its parent, whose result is kept with the batch; null unless it is a fork."""


class ForkedFromField(BaseModel):
    """What a result says besides its samples."""

    forked_from: ForkOrigin | None = None
    """The rollout whose first turns it has; null unless it is a fork."""
