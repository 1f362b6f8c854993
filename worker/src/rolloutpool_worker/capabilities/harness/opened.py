"""Sessions of harnesses, as a worker process and its rollouts use them."""

import asyncio

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import StoreError
from rolloutpool_worker.agents.tool_calls import Agent
from rolloutpool_worker.capabilities.harness.inbox import SessionInbox
from rolloutpool_worker.capabilities.harness.report import SessionCalls, complete
from rolloutpool_worker.capabilities.harness.session import HarnessLost, Lingering, SessionIdle, SessionRun
from rolloutpool_worker.capability import Ending, OpenCapability, Talk, WorkerCapability, WorkerDoor
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.ending import Action, Decision, TicketOutcome


class OpenHarness(OpenCapability):
    """The sessions of one process."""

    option = "harness"

    def __init__(self, door: WorkerDoor) -> None:
        """Runs none yet."""
        self.part = self.inbox = SessionInbox(door.store, door.worker_id)
        self._sessions = Sessions(door.store)
        self._drain = door.drain
        self._lingering = Lingering()

    def agent(self) -> Agent:
        """Returns what leads a rollout by the calls of its program."""
        return self._lead

    async def _lead(self, conversation: Conversation) -> FinishReason:
        choice = conversation.spec.harness
        assert choice is not None
        session = SessionRun(conversation, choice, self._sessions, self._drain, self._lingering)
        self.inbox.add(conversation.claim.uid, session)
        return await session.run()

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        """Says what its lines of talk are, and leaves out what is not trained."""
        session = self.inbox.take(talk.claim.uid)
        if isinstance(ending, SessionIdle):
            await talk.wait(Waiting(waits_for=WaitsFor.HARNESS, message="its program has made no call for a while"))
            # A call may come before it is given back, which then puts it into an outbox.
            talk.publish_soon()
        if session is None or not isinstance(ending, RolloutResult):
            return ending
        branches, choice = session.branches, talk.claim.spec.harness
        lines = [line for line in session.lines.all if line in branches]
        samples_of = [len(branches[line].tokens.ledger.samples()) for line in lines]
        if choice is None or sum(samples_of) != len(ending.samples):
            # What failed so that nothing is delivered has no lines either.
            return ending
        uid, seen = talk.claim.uid, session.seen
        try:
            place, places = await talk.retry(lambda: self._sessions.places_of(uid, seen))
        except (StoreError, asyncio.CancelledError) as error:
            return error
        lost = {n for n, made in enumerate(places, 1) if made < place}
        calls = SessionCalls(seen, session.asked, lost, place)
        result = complete(ending, lines, samples_of, choice.train, calls)
        if result.status is RolloutStatus.COMPLETED and lost and len(lost) == seen:
            failure = HarnessLost("the program that was started last made no call").failure()
            end = {"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR, "failure": failure}
            return result.model_copy(update=end)
        return result

    def decide(self, ending: Ending) -> Decision | None:
        """Lets an idle session wait without a worker."""
        if isinstance(ending, SessionIdle):
            return Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=ending.seconds)
        return None


class WorkerHarness(WorkerCapability):
    """A program calls the policy itself."""

    name = "harness"
    opened = OpenHarness
