"""One rollout's conversation, as an agent sees it: the rollout's main branch, with its tools and its environment.

The steps of talking to the policy are a branch's (`branch`). Here are the steps by which something answers the policy:
tools that run its calls, an environment that takes its messages as actions. What they answered is recorded like all
messages that follow a turn, before the policy is asked again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from rolloutpool_common.process import failpoints
from rolloutpool_common.process.metrics import IN_TOOLS
from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord
from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.protocol.result import Alignment, ToolTime
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import NOT_PLANNED, Branch, Policy, RunningAttempt, SampledTurn
from rolloutpool_worker.conversation.history import AgentMisuse, normal_form
from rolloutpool_worker.conversation.measures import Measures
from rolloutpool_worker.drain import StoppedAtBorder
from rolloutpool_worker.environments import SessionLife, SessionScore
from rolloutpool_worker.tools import ToolContext, ToolRunner

LONGEST_NAME = 64
"""Characters of an environment's name among the times of tools."""


class Conversation(Branch):
    """Holds what an agent talks to: a branch's steps, `run_tools`, `step`, `open_branch`, and properties to read."""

    def __init__(
        self,
        attempt: RunningAttempt,
        *,
        policy: Policy,
        tools: ToolRunner,
        session: SessionLife | None = None,
        beginning: Beginning | None = None,
        policy_for: Callable[[Sequence[dict[str, Any]], Mapping[str, Any]], Awaitable[Policy]] | None = None,
    ) -> None:
        """The conversation of one attempt at a rollout; `policy_for` makes policies that are told other tools."""
        claim = attempt.claim
        super().__init__(
            attempt,
            [message.wire() for message in claim.spec.messages],
            number=0,
            policy=policy,
            measures=Measures(traced=bool(claim.spec.metadata.get("debug_trace"))),
            beginning=beginning,
        )
        self.claim = claim
        self.spec = claim.spec
        self.session = session
        self.score: SessionScore | None = None
        """What the environment said of the whole rollout."""
        self.branches: list[Branch] = [self]
        """All branches of the rollout, in the order of their numbers."""
        self.running_tools = False
        """Whether tools of the last turn run, or have failed."""
        self._tools = tools
        self._policy_for = policy_for

    async def policy_with(self, tools: Sequence[dict[str, Any]], sampling: Mapping[str, Any]) -> Policy:
        """Makes a policy for branches of this rollout that is told these tools, which run elsewhere.

        It samples with these parameters in the place of the rollout's own.
        """
        return self.policy if self._policy_for is None else await self._policy_for(tools, sampling)

    def open_branch(self, messages: Sequence[dict[str, Any]], policy: Policy | None = None) -> Branch:
        """Opens another line of talk, which begins with these messages.

        Its turns are sampled by the same policy, unless another one of this rollout is given (`policy_with`). Its
        samples stand behind those of the branches before it. Branches may have steps in flight at once
        (`talk_at_once`). An agent opens its branches in the same order each time.
        """
        branch = Branch(
            self._attempt,
            normal_form(messages),
            number=len(self.branches),
            policy=policy or self.policy,
            measures=self.measures,
        )
        self.branches.append(branch)
        return branch

    async def talk_at_once(self, *talks: Coroutine[Any, Any, None]) -> None:
        """Runs several lines of talk at once, each with a branch of its own; returns when all are at their ends.

        Where one stops at a border (`StoppedAtBorder`), the others go on to theirs, so that no call is cut off. Where
        one fails, the others are cancelled. Its error is raised when none of them runs any more.
        """
        tasks = [asyncio.ensure_future(talk) for talk in talks]
        stopped: StoppedAtBorder | None = None
        try:
            for ended in asyncio.as_completed(tasks):
                try:
                    await ended
                except StoppedAtBorder as error:
                    stopped = stopped or error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if stopped is not None:
            raise stopped

    @property
    def turn(self) -> int:
        """The turn that it is at: the next one, or the last one while its tools run."""
        return self.turns + (not self.running_tools)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, over all turns of all branches."""
        return self.measures.sampled_tokens

    @property
    def context_tokens(self) -> int:
        """Length of the current context: what the next prompt will have at least."""
        return len(self.tokens.ledger)

    @property
    def records(self) -> Sequence[JournalRecord]:
        """The journal so far, of all branches."""
        return self._journal.records

    @property
    def ledgers(self) -> list[TokenLedger]:
        """The ledgers of all branches, in the order of their numbers."""
        return [branch.tokens.ledger for branch in self.branches]

    @property
    def ids(self) -> int:
        """Number of ids in the contexts of all branches."""
        return sum(map(len, self.ledgers))

    @property
    def in_flight(self) -> bool:
        """Whether the trainer may be sampling for any branch right now."""
        return any(branch.calling for branch in self.branches)

    @property
    def all_certain(self) -> bool:
        """Whether no earlier attempt can have a call of any branch in flight."""
        return all(branch.certain for branch in self.branches)

    @property
    def acts_by_text(self) -> bool:
        """Whether each message of the policy is an action in its environment; see `step`."""
        return self.session is not None and self.session.environment.by_text

    @property
    def episode_over(self) -> bool:
        """Whether the environment has said that the episode is over."""
        return self.session is not None and any(step.done for step in self.measures.steps)

    @property
    def alignment(self) -> Alignment | None:
        """How well the tokens are proved; None before the first sampled one."""
        return self.measures.alignment

    async def run_tools(self, turn: SampledTurn, *, append: Sequence[dict[str, Any]] = ()) -> None:
        """Runs the tool calls of a turn and appends their results to the transcript."""
        if self._replay_observation():
            return
        # Not for a replayed record: it was checked when it was made.
        self._check_appendable()
        appended = normal_form(append) if append else []
        session, calls, tools, spec = self.session, turn.tool_calls, self._tools, self.spec
        # A border too: tools may have effects, so a worker that shuts down leaves them to the next one. Those that are
        # called once at the most are not left: the next worker could not tell them from calls that were made.
        if session is None or not session.once:
            self._stop.check()
        elif not self._place.is_own:
            session.refuse_second(call.function.name for call in calls)
        failpoints.hit("worker.turn_before_tools")
        start = time.perf_counter()
        contexts = [
            ToolContext(self.claim.uid, spec.rollout_id, turn.turn, call.id, spec.metadata, place)
            for place, call in enumerate(calls)
        ]
        self.running_tools = True
        if session is not None:
            session.turn = turn.turn
        with IN_TOOLS:
            results = await tools.run(calls, contexts, faults=turn.faults)
        self.running_tools = False
        elapsed = round((time.perf_counter() - start) * 1000, 3)
        times, warnings = tools.take_times(), tools.take_warnings()
        self._trace.tools(turn.turn, start, times, tools.names)
        record = ObservationRecord(
            messages=[*results, *appended],
            entries=(),
            planned=NOT_PLANNED,
            tools_ms=elapsed,
            tool_calls=len(results),
            warnings=warnings if session is None else (*warnings, *session.take_warnings()),
            times=times,
            environment=None if session is None else await session.take_facts(),
        )
        await self._observe(record)

    async def step(self, turn: SampledTurn) -> None:
        """Gives a turn's message to the environment as an action, and appends what it answers as a user's message."""
        session = self.session
        if session is None or not self.acts_by_text:
            raise AgentMisuse("step: the rollout has no environment whose actions are messages")
        if self._replay_observation():
            return
        self._check_appendable()
        self._stop.check()
        failpoints.hit("worker.turn_before_tools")
        start = time.perf_counter()
        self.running_tools = True
        session.turn = turn.turn
        answer = await session.step(text_of(turn.message))
        facts = await session.take_facts()
        self.running_tools = False
        elapsed = round((time.perf_counter() - start) * 1000, 3)
        message = {"role": "user", "content": answer.content, "tool_calls": None, "tool_call_id": None}
        times = (ToolTime(session.choice.name[:LONGEST_NAME], round(elapsed, 1), ok=True),)
        record = ObservationRecord(
            messages=[message],
            entries=(),
            planned=NOT_PLANNED,
            tools_ms=elapsed,
            tool_calls=0,
            warnings=session.take_warnings(),
            times=times,
            environment=facts,
        )
        await self._observe(record)

    async def ask_score(self) -> None:
        """Asks the environment what the rollout is worth; does nothing without one. Raises `EnvironmentFault`."""
        if self.session is not None:
            self.score = await self.session.score(self.messages)
