"""Says what has happened to one rollout: which workers had it, and why each of them lost it."""

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.answer import Answer

MAX_ATTEMPTS_KEPT = 50
"""Attempts that ended with the queue, of which details are kept; older ones are forgotten."""


class AttemptHistory(Answer):
    """One worker's turn at a rollout. Times are of Redis' clock, ms since 1970."""

    attempt: int
    """From 1."""
    worker: str | None
    claimed_ms: int | None
    ended_ms: int | None
    """Null while it runs."""
    outcome: str
    """`running`, `requeued`, or the status in which it ended the rollout."""
    reason: str | None = None
    """Why it was queued again, as the metric of requeues counts it: `retries` (an infra failure), `deferrals` (its
    trainer's port is down), `capacity` (its environment was full, its grader busy, or its worker lacked a tool),
    `grade_retries` (its grader failed), `pauses` (its run was paused for long), `stale` (it began again with newer
    weights), `weights` (its engine's were too old), `drains` (its worker shut down), `crashes` and `deaths` (its worker
    died), `losses`."""
    detail: str | None = None
    """The failure that was retried, or how the worker's process ended; at most 300 characters."""
    turns: int
    """Turns journaled by then."""
    delay_ms: int = 0
    """How long it had to wait at least, before the next attempt."""


class RolloutHistory(Answer):
    """`GET /v1/rollouts/{uid}/history`."""

    uid: str
    rollout_id: str
    status: RolloutStatus
    accepted_ms: int
    now_ms: int
    ended_ms: int | None
    not_before_ms: int | None
    """Until when a queued rollout must not run again; null where it need not wait."""
    attempts: list[AttemptHistory]
    """The oldest first; of those that were queued again, at most 50 are kept."""
