"""Says what becomes of a rollout when an attempt at it has ended. One table decides.

| the attempt ended with                                            | action  | outcome of the ticket |
| ----------------------------------------------------------------- | ------- | --------------------- |
| a result                                                          | finish  | the result's status   |
| a result, but it is a retryable infra failure with retries left   | requeue | retried               |
| `TrainerDown`: the trainer's port refuses connections             | defer   | deferred              |
| `EnvironmentFull`: its environment has no room for a session      | defer   | deferred              |
| `NeedsMissing`: this worker lacks something that it names         | defer   | deferred              |
| `Drained`: the process shuts down                                 | release | drained               |
| cancelled while the process shuts down                            | release | drained               |
| `SuspectCleared`: an isolated rollout has made progress           | release | cleared               |
| cancelled otherwise: the API or another worker has taken it over  | drop    | stopped               |
| `ClaimLost`: another worker has it, or it has ended               | drop    | lost                  |
| `StoreError`: Redis did not answer while the process shut down    | drop    | store                 |

Capabilities that the rollout uses have answers of their own (`OpenCapability.decide`), also to endings that are not in
the table; the strictest holds. What the actions do is documented at `Action`. `decide` is pure; `attempt` carries out
what it says.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutpool_common.outcomes import Category, FailureKind
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim, ClaimLost, StoreError
from rolloutpool_worker.capability import OpenCapability
from rolloutpool_worker.drain import Drained, SuspectCleared
from rolloutpool_worker.ending import Action, Decision, TicketOutcome, strictest
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy.breaker import PAUSE, TrainerDown
from rolloutpool_worker.rollout.deferral import DEFERRED_SECONDS, NeedsMissing


@dataclass(frozen=True)
class AttemptState:
    """Holds what an attempt knows about its model calls and its session at the moment when it ends."""

    certain: bool
    """No earlier attempt can have left a model call unanswered."""
    calling: bool
    """The trainer may be sampling for this attempt right now."""
    final: bool = False
    """Another attempt could not go on: the session of its environment is lost with this one."""
    tried: int = 0
    """Calls of the present turn that failed in a row."""


def decide(
    ending: RolloutResult | BaseException,
    claim: Claim,
    state: AttemptState,
    *,
    infra_retries: int,
    draining: bool,
    capabilities: Sequence[OpenCapability] = (),
) -> Decision:
    """Decides what becomes of a rollout, with those capabilities that it uses."""
    own = _by_table(ending, claim, state, infra_retries, draining)
    # Whether a turn is in doubt does not depend on a capability.
    asked = [capability.decide(ending) for capability in capabilities]
    others = [replace(one, clean=state.certain) for one in asked if one is not None]
    if others:
        return strictest([*others, *([] if own is None else [own])])
    if own is None:
        assert isinstance(ending, BaseException)
        raise ending
    return own


def _by_table(
    ending: RolloutResult | BaseException, claim: Claim, state: AttemptState, infra_retries: int, draining: bool
) -> Decision | None:
    clean = state.certain
    match ending:
        # It waits 1, 2, 4 … s (docs/decisions/0004).
        case RolloutResult() if not state.final and _is_retried(ending, claim, infra_retries):
            clean = clean and not (state.calling and _is_defect(ending))
            return Decision(Action.REQUEUE, TicketOutcome.RETRIED, clean, delay_s=2.0**claim.retries)
        case RolloutResult():
            return Decision(Action.FINISH, TicketOutcome(ending.status.value))
        case TrainerDown():
            delay_s = PAUSE.delay_s(claim.deferrals + 1)
            return Decision(Action.DEFER, TicketOutcome.DEFERRED, clean, delay_s=delay_s, counter="deferrals")
        case EnvironmentFull() | NeedsMissing():
            return Decision(Action.DEFER, TicketOutcome.DEFERRED, clean, delay_s=DEFERRED_SECONDS)
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
    return None


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
        and claim.retries < infra_retries
    )
