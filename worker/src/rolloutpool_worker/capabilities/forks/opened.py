"""Forks, as a worker process and its rollouts use them."""

from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.turn_headers import TurnKey
from rolloutpool_common.store import Claim
from rolloutpool_worker.capabilities.forks.trunks import Trunks
from rolloutpool_worker.capability import Ending, OpenCapability, Talk, WorkerCapability, WorkerDoor
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.recorded.script import Script


class OpenForks(OpenCapability):
    """The forks of one process."""

    option = "fork"

    def __init__(self, door: WorkerDoor) -> None:
        """Reads no parent yet."""
        self._trunks = Trunks(door.store)

    async def beginning(self, claim: Claim) -> Beginning | None:
        """Reads the turns that a fork has of its parent."""
        origin = claim.spec.fork
        return None if origin is None else await self._trunks.of(claim.batch_id, origin)

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        """Says in the result where the fork began."""
        if not isinstance(ending, RolloutResult):
            return ending
        return ending.model_copy(update={"forked_from": talk.claim.spec.fork})


class WorkerForking(WorkerCapability):
    """A rollout goes on from a turn of another one."""

    name = "forks"
    opened = OpenForks

    def replayed_beginning(self, result: RolloutResult, script: Script) -> Beginning | None:
        """Makes a fork's beginning; its parent's prompt is in its own result, unless its trainer had another one."""
        origin = result.forked_from
        if origin is None:
            return None
        known = [turn for number in range(1, len(script) + 1) if (turn := script.turn(number)) is not None]
        first = known[origin.turn - 1] if origin.turn <= len(known) else None
        same = first is not None and first.summary.drift in NO_DRIFT
        return Beginning(
            script,
            TurnKey(origin.uid, origin.turn),
            first.prompt_ids if first is not None and same else None,
            frozenset(turn.summary.turn for turn in known[: origin.turn - 1] if turn.trained),
        )
