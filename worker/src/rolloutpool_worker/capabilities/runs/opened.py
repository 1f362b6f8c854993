"""Runs, as a worker process and its rollouts use them."""

from rolloutpool_common.capabilities.runs.metrics import STALENESS
from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim
from rolloutpool_worker.capabilities.runs.gate import (
    WEIGHTS_SECONDS,
    RunGate,
    RunGates,
    RunPaused,
    StaleRestart,
    WeightsStale,
)
from rolloutpool_worker.capability import Ending, OpenCapability, Talk, WorkerCapability, WorkerDoor
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.ending import Action, Decision, TicketOutcome
from rolloutpool_worker.policy.waits import RolloutWaits


class OpenRuns(OpenCapability):
    """The gates of one process."""

    note = "run"

    def __init__(self, door: WorkerDoor) -> None:
        """Looks at no run yet."""
        self.gates = RunGates(Runs(door.store), door.drain)

    def gate(self, claim: Claim, stop: RolloutStop, waits: RolloutWaits) -> RunGate:
        """Makes the gate of an attempt."""
        return self.gates.of(claim, stop, waits)

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        """Measures how old the weights of a completed conversation are."""
        match ending:
            case RolloutResult(status=RolloutStatus.COMPLETED, staleness=int(staleness)):
                STALENESS.observe(max(staleness, 0))
        return ending

    def decide(self, ending: Ending) -> Decision | None:
        """Says when a rollout goes on that its gate has stopped."""
        match ending:
            case RunPaused():
                return Decision(Action.DEFER, TicketOutcome.DEFERRED, counter="pauses")
            case WeightsStale():
                return Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=WEIGHTS_SECONDS, counter="weights")
            case StaleRestart():
                return Decision(Action.RESTART, TicketOutcome.RESTARTED, counter="stale")
        return None


class WorkerRuns(WorkerCapability):
    """A trainer says which weights are the newest, and pauses its run while it changes them."""

    name = "runs"
    opened = OpenRuns
