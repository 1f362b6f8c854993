"""One rollout of the batch API: where it stands, and what cancelling it did."""

from typing import Any

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.waiting import Waiting


class RolloutView(Answer):
    """`GET /v1/rollouts/{id}`: the state of one rollout, and its result once it has ended."""

    uid: str
    """The pool's own id."""
    rollout_id: str
    """The caller's name for it; the uid where the caller gave none."""
    batch_id: str
    index: int
    """Its place in the batch, with `n` expanded."""
    group: str | None
    status: RolloutStatus
    attempt: int
    """How many workers have claimed it so far."""
    worker: str | None
    """The worker that runs it."""
    turns: int
    """Turns journaled so far."""
    waiting: Waiting | None = None
    """What it waits for now; null while it does not wait, and at its end (its result has `waited_for`)."""
    result: dict[str, Any] | None
    """A `RolloutResult` as JSON; null until the rollout has ended."""


class RolloutCancelled(Answer):
    """`DELETE /v1/rollouts/{id}`."""

    uid: str | None
    """Null where no such rollout has been submitted yet."""
    status: RolloutStatus
    """`cancelled`, or how it had ended before."""
