"""What can be decided of a rollout whose attempt has ended. Who decides is `rollout.decision`, and capabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rolloutpool_common.errors import RolloutPoolError


class GoesElsewhere(RolloutPoolError):
    """The rollout goes on later, or elsewhere; a capability that raises it decides when."""


Counter = Literal["deferrals", "capacity", "pauses", "weights", "stale", "grade_retries"]


class TicketOutcome(StrEnum):
    """Says what became of one ticket, in one word for Flower and the log."""

    COMPLETED = "completed"
    """The rollout ended; its result is stored."""
    FAILED = "failed"
    """The rollout failed for good; its result is stored."""
    EXPIRED = "expired"
    """The rollout's deadline passed, in the queue or while it ran."""
    CANCELLED = "cancelled"
    """The rollout was dropped, because the weights that sampled it were too old; its result is stored."""

    RETRIED = "retried"
    """It went back to the queue after an infra failure, of its grader perhaps."""
    DEFERRED = "deferred"
    """It went back to the queue because its trainer's port is down, its environment is full, its grader is busy, this
    worker lacks something that it names, its run is paused, or its engine has old weights."""
    RESTARTED = "restarted"
    """It went back to the queue without its journal, because the weights that sampled it were too old."""
    GRADING = "grading"
    """Its conversation is complete; it waits without a worker until its group can be graded."""
    DRAINED = "drained"
    """It went back to the queue because this process shuts down."""
    CLEARED = "cleared"
    """It went back to the queue because it was a suspect and has made progress."""

    STOPPED = "stopped"
    """The API ended it, or another worker has taken it over."""
    LOST = "lost"
    """The store refused this worker's claim: another worker has the rollout, or it has ended."""
    STORE = "store"
    """The store did not answer while this process shut down; the reconciler will requeue the rollout."""

    GONE = "gone"
    """Never claimed: the batch was deleted."""
    ENDED = "ended"
    """Never claimed: the rollout had ended already."""
    PAUSED = "paused"
    """Never claimed: its run is paused. It is published again when the run is resumed."""
    TAKEN = "taken"
    """Never claimed: another worker has it, or it is a suspect and waits for an isolated worker."""
    UNSUITED = "unsuited"
    """Never claimed: this worker lacks something that it names. It waits for a worker that has it."""
    CONDEMNED = "condemned"
    """Never claimed: this worker was declared dead, and has not announced itself again yet. It is queued again."""
    DRAINING = "draining"
    """Never claimed: this process shuts down. The ticket is published again."""

    @property
    def goes_on(self) -> bool:
        """Whether the rollout waits for another ticket."""
        return self in _GOING_ON


_GOING_ON = frozenset(
    {
        *(TicketOutcome.RETRIED, TicketOutcome.DEFERRED, TicketOutcome.RESTARTED, TicketOutcome.GRADING),
        *(TicketOutcome.DRAINED, TicketOutcome.CLEARED, TicketOutcome.STORE, TicketOutcome.PAUSED),
        *(TicketOutcome.UNSUITED, TicketOutcome.CONDEMNED, TicketOutcome.DRAINING),
    }
)


class Action(StrEnum):
    """Says what is written to the store at the end of an attempt."""

    FINISH = "finish"
    """The result is stored, and the rollout has ended."""
    REQUEUE = "requeue"
    """Back to the queue after `delay_s`; counted as a retry."""
    DEFER = "defer"
    """Back to the queue after `delay_s`; counted apart from retries, because there may be many."""
    RESTART = "restart"
    """The journal is forgotten, and the rollout goes back to the queue at once; counted apart from retries."""
    RELEASE = "release"
    """Back to the queue at once; not counted."""
    DROP = "drop"
    """Nothing is written, because this worker may not write, or cannot."""


@dataclass(frozen=True)
class Decision:
    """An action with its arguments, and the ticket's outcome."""

    action: Action
    outcome: TicketOutcome
    clean: bool = True
    """No model call can be unanswered, so that the next attempt may ask its turn without doubt."""
    delay_s: float = 0.0
    """Seconds until the rollout may run again."""
    counter: Counter = "capacity"
    """As what a deferral or a restart counts (`Rollouts.give_back`)."""
    tried: int = 0
    """Calls of the present turn that have failed in a row: the next attempt goes on counting. A worker's drain is no
    reason to begin again, or a turn that never gets an answer could be asked for as long as workers are replaced."""


_STRICTNESS = (Action.REQUEUE, Action.DEFER, Action.RELEASE, Action.RESTART, Action.FINISH, Action.DROP)
"""From what lets the rollout go on to what ends it, and to what writes nothing."""


def strictest(answers: Sequence[Decision]) -> Decision:
    """Chooses among the answers of several; of two that are as strict the first."""
    return max(answers, key=lambda one: _STRICTNESS.index(one.action))
