"""The list of batches, newest first: what a person looks at before anything else."""

from datetime import datetime

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.batch import BatchState, Priority


class BatchSummary(Answer):
    """One line of the list. `GET /v1/batches/{id}` says more."""

    batch_id: str
    state: BatchState
    cancelled: bool
    """Whether it was cancelled as a whole."""
    owner: str
    """The name of the key that submitted it."""
    run: str | None
    """The training run that it was submitted for; null where it is a run of its own."""
    weight: int
    priority: Priority
    labels: dict[str, str]
    v1: bool
    """Whether it is one rollout of protocol v1."""
    total: int
    counts: dict[RolloutStatus, int]
    """How many rollouts are in each state; sums to `total`."""
    turns: int
    """Of the rollouts that have ended, as the next two."""
    sampled_tokens: int
    failures: dict[str, int]
    """How many rollouts per `kind:category` of their failure."""
    created_at: datetime
    age_s: float
    """Seconds since it was accepted."""
    finished_at: datetime | None
    seconds: float
    """How long it took, or has taken so far."""


class BatchList(Answer):
    """`GET /v1/batches`."""

    batches: list[BatchSummary]
    """The newest first."""
    next_cursor: str | None
    """Pass it as `cursor` to get older ones; null where there are none. A page may be shorter than `limit`."""
