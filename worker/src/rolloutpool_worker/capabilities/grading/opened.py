"""Grading, as a worker process and its rollouts use it."""

from functools import partial
from types import MappingProxyType

from rolloutpool_common.capabilities.grading.kept import STAGE
from rolloutpool_common.capabilities.grading.regrades import REGRADE_TASK
from rolloutpool_common.outcomes import Boundary
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.capabilities.grading.base import GRADERS, GraderAgain, GraderBusy, HeldForGroup
from rolloutpool_worker.capabilities.grading.host import GraderHost
from rolloutpool_worker.capabilities.grading.regrading import regrade
from rolloutpool_worker.capabilities.grading.stage import GradingStage
from rolloutpool_worker.capability import Ending, OpenCapability, Talk, WorkerCapability, WorkerDoor
from rolloutpool_worker.ending import Action, Decision, TicketOutcome

BUSY_SECONDS = 10.0
"""Until a rollout may run again whose grader was busy."""


class OpenGrading(OpenCapability):
    """The graders of one process."""

    option = "grader"

    def __init__(self, door: WorkerDoor) -> None:
        """Starts nothing yet."""
        settings = door.settings
        self.host = GraderHost(door.tool_host.watch, seconds=settings.grader_timeout, places=settings.grader_processes)
        self.tasks = {REGRADE_TASK: partial(regrade, door, self)}

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        """Grades a rollout whose conversation is complete, unless it is in the stage of another capability."""
        if ending is None and talk.claim.stage != STAGE:
            return None
        return await GradingStage(talk, self.host).run(ending)

    def decide(self, ending: Ending) -> Decision | None:
        """Says when the grader is asked again."""
        match ending:
            case GraderBusy():
                return Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=BUSY_SECONDS)
            case GraderAgain():
                return Decision(Action.DEFER, TicketOutcome.RETRIED, delay_s=ending.delay_s, counter="grade_retries")
            case HeldForGroup():
                return Decision(Action.DROP, TicketOutcome.GRADING)
            # Its grader has retries of its own, and they are over.
            case RolloutResult(failure=failure) if failure is not None and failure.boundary is Boundary.GRADER:
                return Decision(Action.FINISH, TicketOutcome(ending.status.value))
        return None

    async def close(self) -> None:
        """Ends its children."""
        await self.host.close()


class WorkerGrading(WorkerCapability):
    """A grader says what a rollout is worth."""

    name = "grading"
    opened = OpenGrading
    plugins = MappingProxyType({"grader": GRADERS})
    tasks = (REGRADE_TASK,)
