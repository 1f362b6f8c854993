"""The recorder: the steps of a conversation that really happen, each written to the journal before its consequences.

`Conversation` calls it once the journal has nothing more to replay. A record is what all later attempts know of a step,
so a step changes nothing that its record does not hold.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.process import failpoints
from rolloutpool_common.process.metrics import IN_TOOLS, RENDER_SECONDS
from rolloutpool_common.protocol.environments import EnvironmentFacts
from rolloutpool_common.protocol.journal import EditRecord, ObservationRecord, PlannedTurn, TurnRecord
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.result import ToolTime, TurnSummary
from rolloutpool_common.store import Claim
from rolloutpool_common.tokens.entries import Entry
from rolloutpool_worker.conversation.attachments import TurnAttachments
from rolloutpool_worker.conversation.chat_turn import ChatAsker
from rolloutpool_worker.conversation.engine_tokens import EngineTokens
from rolloutpool_worker.conversation.engine_turn import EngineAsker
from rolloutpool_worker.conversation.fork_point import ForkPoint
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.next_turn import TurnAsker
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.environments import SessionLife
from rolloutpool_worker.policy import CallbackChannel, ChatChannel, EngineChannel, MessageBytes
from rolloutpool_worker.policy.callback import refuse_ambiguous
from rolloutpool_worker.tools import ToolContext, ToolRunner
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace

__all__ = ["Recorder"]

LONGEST_NAME = 64
"""Characters of an environment's name among the times of tools."""


class Recorder:
    """Samples, runs tools, appends and edits for one attempt at one rollout."""

    def __init__(
        self,
        claim: Claim,
        journal: Journal,
        history: History,
        tokens: TokenTrack,
        *,
        channel: CallbackChannel | EngineChannel,
        tools: ToolRunner,
        stop: RolloutStop,
        trace: RolloutTrace = NO_TRACE,
        session: SessionLife | None = None,
        fork: ForkPoint | None = None,
        attachments: TurnAttachments | None = None,
    ) -> None:
        self.calling = False
        """Whether the trainer may be sampling for us right now."""
        self.running_tools = False
        """Whether tools of the last turn run, or have failed."""
        self._claim = claim
        self._journal = journal
        self._history = history
        self._tokens = tokens
        self._channel = channel
        self._asker = _asker(channel, tokens, fork)
        self._fork = fork
        self._tools = tools
        self._stop = stop
        self._trace = trace
        self._session = session
        self._attachments = attachments

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have a call of ours in flight: it ended cleanly, or we are past its turn."""
        return self._claim.clean or self._journal.beyond_inherited

    async def sample(self, planned: PlannedTurn | None, turn: int, *, train: bool) -> TurnRecord:
        """Asks the policy for a turn, whose record `keep_turn` is to write next.

        Args:
            planned: How it is asked; None on turn 1.
            turn: The number of the turn.
            train: Whether the sampled ids are trained.

        Raises:
            StoppedAtBorder: The rollout is to stop here; nothing was asked.
            AmbiguousTurn: A dead worker may have asked for this turn, and the trainer does not allow repetitions.
            RolloutError: The call failed, or its reply contradicts the ledger.
        """
        # A border: nothing is in flight, and the journal has everything up to here.
        self._stop.check()
        # A turn that a fork has of its parent is asked of nobody.
        asks = self._fork is None or turn >= self._fork.turn
        if asks and not self.certain and not await self._may_ask_again():
            raise refuse_ambiguous(turn)
        failpoints.hit("worker.obs_before_call")
        if asks:
            await self._journal.note_calling()
        start = time.perf_counter()
        # Until the record is durable, and not only until the reply is here: a reply that only this worker knows is lost
        # with it, and then the turn is in doubt.
        self.calling = asks
        resampled = asks and not self.certain
        try:
            reply, asked = await self._asker.ask(planned, self._history.messages, self._history.wire, turn)
            failpoints.hit("worker.reply_before_turn")
            # First the check, then everything else: a reply that contradicts the ledger leaves no record.
            train = train and (self._fork is None or self._fork.trains(turn))
            echo = await self._tokens.ingest_reply(reply, self._history.messages, asked, train=train)
        except BaseException as error:
            self._trace.chat(turn, start, summary=None, error=error)
            raise
        summary = TurnSummary(
            turn=turn,
            prompt_tokens=len(self._tokens.ledger) - len(reply.token_ids),
            sampled_tokens=len(reply.token_ids),
            mask_sent=asked.mask_length or None,
            finish_reason=reply.finish_reason,
            drift=echo.label.value,
            tool_calls=len(reply.message.get("tool_calls") or ()),
            stop=self._tokens.stop_of(reply),
            policy_version=reply.policy_version,
            aborts=reply.aborts,
            resampled=resampled and self._claim.spec.token_in,
            start_ms=round(self._claim.accepted_ms(start), 1),
            difference=echo.difference,
        )
        record = TurnRecord(
            message=reply.message,
            entries=self._new_entries(),
            trainer=self._tokens.kind,
            zero_logprobs=not any(reply.logprobs) and not self._claim.spec.messages_only,
            summary=summary,
            llm_ms=(time.perf_counter() - start) * 1000,
        )
        self._trace.chat(turn, start, summary=summary)
        if self._attachments is not None:
            self._attachments.add(reply.attachments)
        return record

    async def keep_turn(self, record: TurnRecord) -> None:
        """Makes a turn durable. Raises `ClaimLost` where the rollout is no longer this worker's."""
        await self._journal.write(record, turns=record.summary.turn)
        self.calling = False
        # Protocol v1 has no batch whose other rollouts would need to know it.
        if not self._claim.spec.v1 and self._channel.is_news(self._claim.batch_id):
            await self._journal.note_idempotent()

    async def _may_ask_again(self) -> bool:
        """Whether a turn that a dead worker may have asked for may be asked again (`policy/idempotence.py`)."""
        if self._channel.may_repeat or await self._journal.is_idempotent():
            return True
        return await self._channel.ask_idempotent()

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        turn: int,
        appended: list[dict[str, Any]],
        *,
        faults: Mapping[str, str] | None = None,
    ) -> ObservationRecord:
        """Runs the tool calls of a turn; records their results, then the messages `appended`.

        Args:
            calls: In the order in which the policy made them.
            turn: The turn that made them.
            appended: In normal form; they follow the results.
            faults: What is wrong with calls that cannot be run, by their ids.

        Returns:
            The record, which is durable.

        Raises:
            TooManyToolCalls: There are more calls than the limit; no tool was run.
            StoppedAtBorder: The rollout is to stop here; no tool was run.
            EnvironmentFault: The environment's session failed, or must not be asked again.
        """
        # A border too: tools may have effects, so a worker that shuts down leaves them to the next one. Those that are
        # called once at the most are not left: the next worker could not tell them from calls that were made.
        if self._session is None or not self._session.once:
            self._stop.check()
        elif not self._journal.beyond_inherited:
            self._session.refuse_second(call.function.name for call in calls)
        failpoints.hit("worker.turn_before_tools")
        start = time.perf_counter()
        spec = self._claim.spec
        contexts = [
            ToolContext(self._claim.uid, spec.rollout_id, turn, call.id, spec.metadata, place)
            for place, call in enumerate(calls)
        ]
        self.running_tools = True
        if self._session is not None:
            self._session.turn = turn
        with IN_TOOLS:
            results = await self._tools.run(calls, contexts, faults=faults)
        self.running_tools = False
        elapsed = (time.perf_counter() - start) * 1000
        times = self._tools.take_times()
        self._trace.tools(turn, start, times, self._tools.names)
        return await self.append(
            [*results, *appended],
            turn,
            tools_ms=elapsed,
            tool_calls=len(results),
            warnings=(*self._tools.take_warnings(), *(() if self._session is None else self._session.take_warnings())),
            times=times,
            environment=None if self._session is None else await self._session.take_facts(),
        )

    async def step(self, session: SessionLife, text: str, turn: int) -> ObservationRecord:
        """Gives a turn's message to the environment as an action; records what the policy reads of the answer.

        Args:
            session: The rollout's.
            text: Of the message.
            turn: The turn that wrote it.

        Raises:
            StoppedAtBorder: The rollout is to stop here; the environment was not asked.
            EnvironmentFault: The environment's session failed.
        """
        self._stop.check()
        failpoints.hit("worker.turn_before_tools")
        start = time.perf_counter()
        self.running_tools = True
        session.turn = turn
        answer = await session.step(text)
        facts = await session.take_facts()
        self.running_tools = False
        elapsed = (time.perf_counter() - start) * 1000
        message = {"role": "user", "content": answer.content, "tool_calls": None, "tool_call_id": None}
        times = (ToolTime(session.choice.name[:LONGEST_NAME], round(elapsed, 1), ok=True),)
        return await self.append(
            [message], turn, tools_ms=elapsed, warnings=session.take_warnings(), times=times, environment=facts
        )

    async def append(
        self,
        messages: list[dict[str, Any]],
        turn: int,
        *,
        tools_ms: float = 0.0,
        tool_calls: int = 0,
        warnings: tuple[str, ...] = (),
        times: tuple[ToolTime, ...] = (),
        environment: EnvironmentFacts | None = None,
    ) -> ObservationRecord:
        """Records messages that follow a turn, and how the next one is asked.

        Args:
            messages: In normal form.
            turn: The turn that they follow.
            tools_ms: Wall time of the tools among them.
            tool_calls: How many of them are results of tools.
            warnings: What the result is to say of these tools.
            times: How long each of them took.
            environment: What else the environment said.
        """
        history, start = self._history, time.perf_counter()
        # `Conversation` appends the messages to the history when it applies the record, replayed or new. Until then
        # they are passed along beside it.
        await self._tokens.append(history.since_last_turn(messages), history.through_last_turn(), turn)
        record = ObservationRecord(
            messages=messages,
            entries=self._new_entries(),
            planned=await self._asker.plan(
                [*history.messages, *messages], history.wire.followed_by(messages), turn + 1
            ),
            tools_ms=tools_ms,
            tool_calls=tool_calls,
            warnings=warnings,
            times=times,
            environment=environment,
        )
        RENDER_SECONDS.observe(time.perf_counter() - start)
        await self._journal.write(record, turns=turn)
        return record

    async def edit(self, messages: list[dict[str, Any]], turn: int) -> EditRecord:
        """Records another history, and how the next turn is asked with it.

        Args:
            messages: The whole history from now on, in normal form.
            turn: The last turn that was sampled.

        Raises:
            TemplateUnusable: The template refuses these messages.
            ClaimLost: The rollout is no longer this worker's.
        """
        await self._tokens.replace(messages, turn)
        record = EditRecord(
            messages=messages,
            entries=self._new_entries(),
            planned=await self._asker.plan(messages, MessageBytes(messages), turn + 1, edited=True),
        )
        await self._journal.write(record, turns=turn)
        return record

    def _new_entries(self) -> tuple[Entry, ...]:
        return self._tokens.ledger.entries_since(self._journal.entries)


def _asker(
    channel: CallbackChannel | EngineChannel, tokens: TokenTrack, fork: ForkPoint | None
) -> TurnAsker | EngineAsker | ChatAsker:
    if isinstance(channel, EngineChannel):
        assert isinstance(tokens, EngineTokens)
        return EngineAsker(channel, tokens, fork)
    return ChatAsker(channel) if isinstance(channel, ChatChannel) else TurnAsker(channel, tokens, fork)
