"""What becomes of a rollout when an attempt at it has ended. One table decides.

| the attempt ended with                                            | action  | outcome of the ticket |
| ----------------------------------------------------------------- | ------- | --------------------- |
| a result                                                          | finish  | the result's status   |
| a result, but it is a retryable infra failure with retries left   | requeue | retried               |
| `TrainerDown`: the trainer's port refuses connections             | defer   | deferred              |
| `EnvironmentFull`: its environment has no room for a session      | defer   | deferred              |
| `GraderBusy`: its grader's processes are busy for long            | defer   | deferred              |
| `NeedsMissing`: this worker lacks something that it names         | defer   | deferred              |
| `GraderAgain`: its grader failed, and is asked again later        | defer   | retried               |
| `HeldForGroup`: its grader needs the rest of its group            | drop    | grading               |
| `Drained`: the process shuts down                                 | release | drained               |
| cancelled while the process shuts down                            | release | drained               |
| `RunPaused`: its run has been paused for long                    | defer   | deferred              |
| `WeightsStale`: its engine has weights that are too old           | defer   | deferred              |
| `StaleRestart`: its weights are too old, and it begins again      | restart | restarted             |
| `SuspectCleared`: an isolated rollout has made progress           | release | cleared               |
| cancelled otherwise: the API or another worker has taken it over  | drop    | stopped               |
| `ClaimLost`: another worker has it, or it has ended               | drop    | lost                  |
| `StoreError`: Redis did not answer while the process shut down    | drop    | store                 |

What the actions do is documented at `Action`. `decide` is pure; `attempt` carries out what it says.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rolloutpool_common.outcomes import Boundary, Category, FailureKind
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim, ClaimLost, StoreError
from rolloutpool_worker.drain import Drained, SuspectCleared
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.graders import GraderAgain, GraderBusy, HeldForGroup
from rolloutpool_worker.policy import TrainerDown
from rolloutpool_worker.policy.breaker import OPEN_SECONDS
from rolloutpool_worker.rollout.deferral import NeedsMissing
from rolloutpool_worker.rollout.run_gate import RunPaused, StaleRestart, WeightsStale

__all__ = ["Action", "AttemptState", "Decision", "TicketOutcome", "counter_of", "decide"]


class TicketOutcome(StrEnum):
    """What became of one ticket, in one word for Flower and the log."""

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
    """What is written to the store at the end of an attempt."""

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
class AttemptState:
    """What an attempt knows about its model calls and its session at the moment when it ends."""

    certain: bool
    """No earlier attempt can have left a model call unanswered."""
    calling: bool
    """The trainer may be sampling for this attempt right now."""
    final: bool = False
    """Another attempt could not go on: the session of its environment is lost with this one."""
    tried: int = 0
    """Calls of the present turn that failed in a row."""


@dataclass(frozen=True)
class Decision:
    """An action with its arguments, and the ticket's outcome."""

    action: Action
    outcome: TicketOutcome
    clean: bool = True
    """No model call can be unanswered, so that the next attempt may ask its turn without doubt."""
    delay_s: float = 0.0
    """Seconds until the rollout may run again."""
    tried: int = 0
    """Calls of the present turn that have failed in a row: the next attempt goes on counting. A worker's drain is no
    reason to begin again, or a turn that never gets an answer could be asked for as long as workers are replaced."""


def decide(
    ending: RolloutResult | BaseException, claim: Claim, state: AttemptState, *, infra_retries: int, draining: bool
) -> Decision:
    """Decides what becomes of a rollout.

    Args:
        ending: How the attempt ended: with a result, or with an exception of the table.
        claim: The claim under which it ran.
        state: What the attempt knows about its model calls and its session.
        infra_retries: How often a rollout may be requeued after an infra failure.
        draining: Whether this process shuts down.

    Raises:
        BaseException: `ending` itself, where the table does not name it.
    """
    clean = state.certain
    match ending:
        # It waits 1, 2, 4 … s (docs/decisions/0005).
        case RolloutResult() if not state.final and _is_retried(ending, claim, infra_retries):
            clean = clean and not (state.calling and _is_defect(ending))
            return Decision(Action.REQUEUE, TicketOutcome.RETRIED, clean, delay_s=2.0**claim.retries)
        case RolloutResult():
            return Decision(Action.FINISH, TicketOutcome(ending.status.value))
        case TrainerDown() | EnvironmentFull() | NeedsMissing() | GraderBusy() | WeightsStale():
            return Decision(Action.DEFER, TicketOutcome.DEFERRED, clean, delay_s=OPEN_SECONDS)
        case RunPaused():
            return Decision(Action.DEFER, TicketOutcome.DEFERRED, clean)
        case StaleRestart():
            return Decision(Action.RESTART, TicketOutcome.RESTARTED)
        case GraderAgain():
            return Decision(Action.DEFER, TicketOutcome.RETRIED, clean, delay_s=ending.delay_s)
        case HeldForGroup():
            return Decision(Action.DROP, TicketOutcome.GRADING)
        case Drained():
            return Decision(Action.RELEASE, TicketOutcome.DRAINED, clean, tried=state.tried)
        # Cut off anywhere, perhaps in a call. The other exceptions that lead back to the queue are raised where no call
        # is in flight, so only here `calling` counts.
        case asyncio.CancelledError() if draining:
            # The call that is cut off had no answer either, for as long as the drain waited.
            tried = state.tried + int(state.calling)
            return Decision(Action.RELEASE, TicketOutcome.DRAINED, clean and not state.calling, tried=tried)
        case SuspectCleared():
            return Decision(Action.RELEASE, TicketOutcome.CLEARED, clean)
        case asyncio.CancelledError():
            return Decision(Action.DROP, TicketOutcome.STOPPED)
        case ClaimLost():
            return Decision(Action.DROP, TicketOutcome.LOST)
        case StoreError():
            return Decision(Action.DROP, TicketOutcome.STORE)
    raise ending


def counter_of(cause: object) -> Literal["deferrals", "capacity", "pauses", "weights", "grade_retries"]:
    """Says as what a deferral counts (`Rollouts.give_back`).

    Args:
        cause: The exception that ended the attempt.
    """
    match cause:
        case GraderAgain():
            return "grade_retries"
        case RunPaused():
            return "pauses"
        case WeightsStale():
            return "weights"
        case TrainerDown():
            return "deferrals"
    return "capacity"


def _is_defect(result: RolloutResult) -> bool:
    """Whether the worker itself failed. Then the trainer may have sampled a turn whose reply was not journaled."""
    return result.failure is not None and result.failure.category is Category.INTERNAL_ERROR


def _is_retried(result: RolloutResult, claim: Claim, infra_retries: int) -> bool:
    """Whether the failure goes back to the queue and not to the trainer. Protocol v1 retries nothing."""
    failure = result.failure
    return (
        failure is not None
        and failure.kind is FailureKind.INFRA
        and failure.retryable
        and not claim.spec.v1
        # Its grader has retries of its own, and they are over.
        and failure.boundary is not Boundary.GRADER
        and claim.retries < infra_retries
    )
