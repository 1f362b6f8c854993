"""What a rollout lacks that goes back to the queue without a failure, and how its readers are told.

1. An attempt ends with an exception that `decision` defers: the trainer's port is down, the engine's weights are old,
   the environment is full, or this worker has not all tools of the rollout (`check_tools`).
2. `note_deferral` says so in the states of rollout and batch, before the rollout is given back.

For example, a plug-in is on one of two workers. Where the other one takes a rollout that names its tool, the rollout
waits for ten seconds, says which tool that worker lacks, and is taken again.
"""

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.store import Claim
from rolloutpool_worker.drain import StoppedAtBorder
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy import TrainerDown
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.rollout.run_gate import WeightsStale
from rolloutpool_worker.tools import TOOLS

__all__ = ["ToolsMissing", "check_tools", "note_deferral"]


class ToolsMissing(StoppedAtBorder):
    """This worker lacks a tool that the rollout names; another one may have it."""


def check_tools(spec: RolloutSpec, worker_id: str) -> None:
    """Makes sure that this worker has each tool that a rollout names; with fewer its task would be another one.

    Args:
        spec: Of the rollout.
        worker_id: Of this worker, for people.

    Raises:
        ToolsMissing: It lacks some.
    """
    missing = [name for name in spec.tools or () if TOOLS.get(name) is None]
    if missing:
        shown = ", ".join(repr(name[:100]) for name in missing[:3])
        raise ToolsMissing(f"worker {worker_id} has no tool {shown}; it has {', '.join(TOOLS.names()) or 'none'}")


async def note_deferral(waits: RolloutWaits, cause: object, claim: Claim, wait_s: float) -> None:
    """Says what a rollout waits for that is about to go back to the queue.

    Args:
        waits: Of the rollout.
        cause: The exception that ended the attempt; those that say so themselves are left out.
        claim: Of the attempt.
        wait_s: Seconds until it may run again.
    """
    match cause:
        case WeightsStale():
            await waits.failed(cause, 1, wait_s)
        case TrainerDown():
            await waits.failed(cause, claim.deferrals + 1, wait_s, port=True)
        case ToolsMissing():
            await waits.lacks(WaitsFor.WORKER, cause.message, wait_s)
        case EnvironmentFull():
            name = claim.spec.environment.name if claim.spec.environment else "?"
            await waits.lacks(WaitsFor.ENVIRONMENT, f"environment {name} has no room for another session", wait_s)
