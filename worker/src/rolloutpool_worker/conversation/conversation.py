"""One rollout's conversation, as an agent sees it.

The only writer of its messages, tokens and journal. Everything that happened is in the journal before its consequences
leave the worker: a turn before its tools run, an observation before the next model call.

Each step works in two parts. First a record is found: replayed from the journal of an earlier attempt (`journal.py`),
or made by a step that really happens (`recorder.py`). Then the record is applied to messages and measures, in the same
way for both, so a resumed rollout is in the same state as one that was never interrupted. A turn is applied together
with its tokens, before it is written: if a deadline interrupts the write, the result has all of the turn.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rolloutpool_common.process.logs import bind_log, log_event
from rolloutpool_common.protocol.journal import EditRecord, ObservationRecord, PlannedTurn, TurnRecord
from rolloutpool_common.protocol.messages import CALL_FAULTS, Message, ToolCall, text_of
from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.attachments import TurnAttachments
from rolloutpool_worker.conversation.fork_point import ForkPoint
from rolloutpool_worker.conversation.history import AgentMisuse, History, normal_form
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.measures import Measures, PastRecord
from rolloutpool_worker.conversation.recorder import Recorder
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.environments import SessionLife, SessionScore
from rolloutpool_worker.policy import CallbackChannel, EngineChannel
from rolloutpool_worker.tools import ToolRunner
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace

__all__ = ["Conversation", "SampledTurn"]

_log = logging.getLogger(__name__)

Kind = TypeVar("Kind", TurnRecord, ObservationRecord, EditRecord)


@dataclass(frozen=True)
class SampledTurn:
    """What the policy did in one turn."""

    turn: int
    """From 1."""
    message: dict[str, Any]
    """The assistant message in normal form."""
    tool_calls: list[ToolCall]
    """The calls in that message."""
    finish_reason: str | None
    """The trainer's word for why sampling stopped."""
    sampled: int
    """Number of sampled tokens."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with those calls that cannot be run, by their ids."""


class Conversation:
    """What an agent talks to: `sample`, `run_tools`, `step`, `append_messages`, `edit`, and properties to read."""

    def __init__(
        self,
        claim: Claim,
        *,
        journal: Journal,
        channel: CallbackChannel | EngineChannel,
        tokens: TokenTrack,
        tools: ToolRunner,
        stop: RolloutStop,
        trace: RolloutTrace = NO_TRACE,
        session: SessionLife | None = None,
        fork: ForkPoint | None = None,
    ) -> None:
        self.claim = claim
        self.spec = claim.spec
        self.tokens = tokens
        past = PastRecord() if claim.spec.replay_record else None
        self.measures = Measures(traced=bool(claim.spec.metadata.get("debug_trace")), past=past)
        self.session = session
        """Of the rollout's environment; None where it has none."""
        self.attachments = TurnAttachments(claim.spec, claim.attachment_bytes)
        """What the engine says of its ids besides log-probabilities."""
        self.score: SessionScore | None = None
        """What the environment said of the whole rollout."""
        self._journal = journal
        self._history = History([message.wire() for message in claim.spec.messages])
        self._recorder = Recorder(
            claim,
            journal,
            self._history,
            tokens,
            channel=channel,
            tools=tools,
            stop=stop,
            trace=trace,
            session=session,
            fork=fork,
            attachments=self.attachments,
        )
        self._planned: PlannedTurn | None = None
        """How the next turn is asked; None before turn 1, and until something follows a turn."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript so far, in normal form; not to be changed."""
        return self._history.messages

    @property
    def turns(self) -> int:
        """Model calls that succeeded."""
        return len(self.measures.turns)

    @property
    def turn(self) -> int:
        """The turn that it is at: the next one, or the last one while its tools run."""
        return self.turns + (not self._recorder.running_tools)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, over all turns."""
        return self.measures.sampled_tokens

    @property
    def context_tokens(self) -> int:
        """Length of the current context: what the next prompt will have at least."""
        return len(self.tokens.ledger)

    @property
    def calling(self) -> bool:
        """Whether the trainer may be sampling for us right now."""
        return self._recorder.calling

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have a model call in flight."""
        return self._recorder.certain

    @property
    def acts_by_text(self) -> bool:
        """Whether each message of the policy is an action in its environment; see `step`."""
        return self.session is not None and self.session.environment.by_text

    @property
    def episode_over(self) -> bool:
        """Whether the environment has said that the episode is over."""
        return any(step.done for step in self.measures.steps)

    @property
    def alignment(self) -> Alignment | None:
        """How well the tokens are proved; None before the first sampled one."""
        return self.measures.alignment

    async def sample(self, *, train: bool = True) -> SampledTurn:
        """Has the policy sample a turn. When this returns, its message is in the transcript and durable.

        Args:
            train: False keeps the turn in the context with mask 0.

        Returns:
            What the policy did.

        Raises:
            StoppedAtBorder: The rollout is to stop here; nothing was asked.
            TrainerDown: The trainer's port is taken out; nothing was asked.
            RolloutError: The call failed, or its reply contradicts the ledger.
            StaleJournal: An earlier attempt did something else at this step.
            ClaimLost: The rollout is no longer this worker's.
        """
        record = self._replay(TurnRecord)
        if record is not None:
            # Before the turn's own message is appended: these are the messages that it was asked with.
            self.tokens.resume(record.trainer, self.messages)
            return self._apply_turn(record)
        bind_log(turn=self.turns + 1)
        record = await self._recorder.sample(self._planned, self.turns + 1, train=train)
        self._log_turn(record)
        # Before the write, because the ledger has the turn already, and a deadline may pass meanwhile.
        sampled = self._apply_turn(record)
        await self._recorder.keep_turn(record)
        return sampled

    async def run_tools(self, turn: SampledTurn, *, append: Sequence[dict[str, Any]] = ()) -> None:
        """Runs the tool calls of a turn and appends their results to the transcript.

        Args:
            turn: As `sample` returned it.
            append: Further messages of the environment, which follow the results.

        Raises:
            StoppedAtBorder: The rollout is to stop here; no tool was run.
            TooManyToolCalls: The turn has more calls than the limit; no tool was run.
            AgentMisuse: No sampled turn comes before, or one of `append` is no message.
            StaleJournal: An earlier attempt did something else at this step.
            ClaimLost: The rollout is no longer this worker's.
        """
        record = self._replay(ObservationRecord)
        if record is None:
            # Not for a replayed record: it was checked when it was made.
            self._check_appendable()
            appended = normal_form(append)
            record = await self._recorder.run_tools(turn.tool_calls, turn.turn, appended, faults=turn.faults)
        self._apply_observation(record)

    async def step(self, turn: SampledTurn) -> None:
        """Gives a turn's message to the environment as an action, and appends what it answers as a user's message.

        Args:
            turn: As `sample` returned it.

        Raises:
            AgentMisuse: The rollout has no environment whose actions are messages.
            StoppedAtBorder: The rollout is to stop here; the environment was not asked.
            EnvironmentFault: The environment's session failed.
            StaleJournal: An earlier attempt did something else at this step.
            ClaimLost: The rollout is no longer this worker's.
        """
        if self.session is None or not self.acts_by_text:
            raise AgentMisuse("step: the rollout has no environment whose actions are messages")
        record = self._replay(ObservationRecord)
        if record is None:
            self._check_appendable()
            record = await self._recorder.step(self.session, text_of(turn.message), turn.turn)
        self._apply_observation(record)

    async def ask_score(self) -> None:
        """Asks the environment what the rollout is worth; does nothing without one. Raises `EnvironmentFault`."""
        if self.session is not None:
            self.score = await self.session.score(self.messages)

    async def append_messages(self, messages: Sequence[dict[str, Any]]) -> None:
        """Appends messages of the environment (user turns, for instance) after a sampled turn and its results."""
        record = self._replay(ObservationRecord)
        if record is None:
            self._check_appendable()
            record = await self._recorder.append(normal_form(messages), self.turns)
        self._apply_observation(record)

    async def edit(self, messages: Sequence[dict[str, Any]]) -> None:
        """Makes `messages` the whole history: truncated, summarised, reordered.

        What was sampled so far stays a training sample under the context in which it was sampled; the edited history
        is the prompt of a new one. The next call carries an explicit mask for all of it.
        """
        record = self._replay(EditRecord)
        if record is None:
            if not self.turns:
                raise AgentMisuse("edit: nothing was sampled yet; change the rollout's own messages instead")
            record = await self._recorder.edit(normal_form(messages), self.turns)
        if self.measures.past is not None:
            self.measures.past.add_edit(self.turns, self.messages, len(record.messages))
        self._planned = record.planned
        self._history.replace(record.messages)

    def _check_appendable(self) -> None:
        if not self.turns or (self._planned is not None and self._planned.edited):
            raise AgentMisuse("messages follow a sampled turn: call sample() first, or give the messages to edit()")

    def _replay(self, kind: type[Kind]) -> Kind | None:
        record = self._journal.replay(kind)
        if record is not None:
            self.tokens.ledger.absorb(record.entries)
        return record

    def _log_turn(self, record: TurnRecord) -> None:
        # The line lists every segment of the context, which would be work for nothing at each turn.
        if _log.isEnabledFor(logging.DEBUG):
            before = self.measures.turns[-1].prompt_tokens if self.measures.turns else None
            runs = " ".join(f"{s.kind}:{s.n}={int(s.trained)}" for s in self.tokens.ledger.segments)
            log_event(
                _log, logging.DEBUG, "turn sampled", summary=repr(record.summary), prompt_before=before, segments=runs
            )

    def _apply_turn(self, record: TurnRecord) -> SampledTurn:
        self.measures.add_turn(record)
        self._history.append([record.message])
        self._planned = None
        summary = record.summary
        return SampledTurn(
            turn=summary.turn,
            message=record.message,
            tool_calls=Message.model_validate(record.message).tool_calls or [],
            finish_reason=summary.finish_reason,
            sampled=summary.sampled_tokens,
            # A trainer's message may hold anything under this key.
            faults=record.message.get(CALL_FAULTS, {}) if self.spec.token_in else {},
        )

    def _apply_observation(self, record: ObservationRecord) -> None:
        self.measures.add_observation(record)
        self._planned = record.planned
        self._history.append(record.messages)
