"""Says what a rollout lacks that goes back to the queue, and how its readers are told.

1. An attempt ends with an exception that `decision` defers: the trainer's port is down, the environment is full,
   or this worker lacks something that the rollout names (`lacks`). Or its environment failed, and is tried again.
2. `note_deferral` says so in the states of rollout and batch, before the rollout is given back.

Usually a rollout goes to a suited worker at once, and the claim refuses every other one (`store/lanes.py`). But a
batch that an earlier release has accepted says nothing of its needs. For example, a plug-in is on one of two workers.
Where the other one takes a rollout that names its tool, the rollout waits for ten seconds, says what that worker lacks,
and is taken again.
"""

from contextlib import suppress

from rolloutpool_common.outcomes import Boundary, Failure
from rolloutpool_common.protocol.offers import PLUGINS, needs_of, shown
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import Claim, Store, StoreError
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.drain import StoppedAtBorder
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy.breaker import TrainerDown
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.rollout.own_offer import own_offer

DEFERRED_SECONDS = 10.0
"""Until a rollout is tried again that lacks something. One whose trainer is down waits as breakers do (`PAUSE`)."""


class NeedsMissing(StoppedAtBorder):
    """This worker lacks something that the rollout names; another one may have it."""


def lacks(spec: RolloutSpec, worker_id: str) -> NeedsMissing | None:
    """Looks whether this worker has all that a rollout names; with less its task would be another one."""
    options = ("environment", *(kind.option for kind in PLUGINS))
    named = {option: {"name": choice.name} for option in options if (choice := getattr(spec, option)) is not None}
    needs = needs_of({"tools": spec.tools, "agent": spec.agent, "metadata": spec.metadata, "v1": spec.v1, **named})
    if not needs:
        return None
    offer = own_offer()
    missing = [name for name in needs if name not in offer]
    if not missing:
        return None
    having = f"it has {shown(offer)}" if offer else "it has no plug-ins"
    return NeedsMissing(f"worker {worker_id} has no {shown(missing)}; {having}")


async def note_deferral(waits: RolloutWaits, cause: object, claim: Claim, wait_s: float) -> None:
    """Says what a rollout waits for that is about to go back to the queue."""
    match cause:
        case TrainerDown():
            await waits.failed(cause, claim.deferrals + 1, wait_s, port=True)
        case NeedsMissing():
            await waits.lacks(WaitsFor.WORKER, cause.message, wait_s)
        case Failure(boundary=Boundary.ENVIRONMENT):
            await waits.lacks(WaitsFor.ENVIRONMENT, cause.message, wait_s)
        case EnvironmentFull():
            name = claim.spec.environment.name if claim.spec.environment else "?"
            await waits.lacks(WaitsFor.ENVIRONMENT, f"environment {name} has no room for another session", wait_s)


async def note_setback(waits: RolloutWaits, store: Store, claim: Claim, begun: Conversation | None) -> None:
    """Has the result of a rollout whose time is over, before it has `begun`, say why its last session failed."""
    if begun is not None or not claim.retries or not claim.spec.environment:
        return
    with suppress(StoreError):
        history = await store.histories.read(claim.uid, None)
        if history is not None and (causes := [past.detail for past in history.attempts if past.detail]):
            waits.now = Waiting(waits_for=WaitsFor.ENVIRONMENT, message=causes[-1])
