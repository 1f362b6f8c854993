"""A branch: a line of talk between a rollout and its policy.

A branch is a ledger with its messages, and a place in the rollout's record. A plain rollout has one, its conversation.
An agent may open more of them, and have several in flight at once.

Everything that happened is in the record before its consequences leave the worker: a turn before its tools run, an
observation before the next model call. Each step works like this:

1. The place is asked for the step's record (`journal`). If an earlier attempt has made the step, its record is applied
   to tokens, messages and measures, and that is all.
2. Otherwise the step really happens. The policy is asked, or messages are rendered.
3. Its record is applied before it is written: the ledger has it already, and a deadline may pass during the write. So
   the result of an expired rollout has all of a step or nothing.
4. When the record is durable, the step returns.

A record is all that a later attempt knows of a step, so a step changes nothing that its record does not hold.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rolloutpool_common.errors import AmbiguousTurn
from rolloutpool_common.process import failpoints
from rolloutpool_common.process.logs import bind_log, log_event
from rolloutpool_common.process.metrics import RENDER_SECONDS
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import EditRecord, MaskPlan, ObservationRecord, PlannedTurn, TurnRecord
from rolloutpool_common.protocol.messages import CALL_FAULTS, Message, ToolCall
from rolloutpool_common.protocol.result import Sample, TurnSummary
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.history import AgentMisuse, History, normal_form
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.measures import Measures
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace

_log = logging.getLogger(__name__)

# `value` of an enumeration's member is four calls of functions.
_LABELS = {label: label.value for label in DriftLabel}


NOT_PLANNED = PlannedTurn(MaskPlan((), 0, None), "")
"""Of a record whose messages no turn can be asked with yet."""


@dataclass(slots=True)
class SampledTurn:
    """Holds what the policy did in one turn."""

    turn: int
    """From 1."""
    message: dict[str, Any]
    """The assistant message in normal form."""
    tool_calls: Sequence[ToolCall]
    """The calls in that message."""
    finish_reason: str | None
    """The trainer's word for why sampling stopped."""
    sampled: int
    """Number of sampled tokens."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with those calls that cannot be run, by their ids."""
    noted: Any = None
    """What a capability answered to the note that was written with the turn; None where the turn was replayed."""


class KeptBeside(Protocol):
    """Holds what a policy says of its turns that is kept beside the result, not in it. Nothing of it is journaled."""

    def add(self, said: Sequence[Any]) -> None:
        """Keeps what one turn has."""
        ...

    def fields(self, samples: Sequence[Sample]) -> tuple[dict[str, Any], list[str]]:
        """Returns what the result says of it: fields, and warnings."""
        ...

    def record(self) -> bytes:
        """Returns it as it is stored; empty where there is none."""
        ...


class Policy(Protocol):
    """Who samples the turns of a rollout: it asks, keeps account of the tokens, and resumes.

    There are three: a trainer's callback (`callback_policy`), a chat endpoint that gives no ids (`chat_policy`), and an
    inference engine (`capabilities.engines`).
    """

    @property
    def beside(self) -> KeptBeside | None:
        """What it keeps beside the result; None where that is nothing."""
        ...

    @property
    def may_repeat(self) -> bool:
        """Whether the same turn may be asked again, as far as options and earlier answers tell."""
        ...

    def open_tokens(self) -> TokenTrack:
        """Opens the account of a new branch's tokens."""
        ...

    async def plan(self, branch: "Branch", turn: int, *, edited: bool = False) -> PlannedTurn:
        """Decides how a turn from 2 on is asked, when the branch's history is complete up to that turn."""
        ...

    async def ask(self, branch: "Branch", turn: int) -> tuple[Reply, AskedTurn]:
        """Asks a turn with the branch's history, as `branch.planned` says; returns how it was accepted, too."""
        ...

    async def ask_idempotent(self) -> bool:
        """Asks whether the same turn may be asked again; raises where nothing listens."""
        ...

    def is_news(self, batch_id: str) -> bool:
        """Whether a promise that the same turn may be asked again is to be noted with this batch now."""
        ...


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """The attempt at a rollout that all branches of its conversation are part of."""

    claim: Claim
    journal: Journal
    """Keeps the steps."""
    stop: RolloutStop
    """Says at each border whether it must end."""
    trace: RolloutTrace = NO_TRACE


class Branch:
    """One line of talk: `sample`, `append_messages`, `edit`."""

    def __init__(
        self,
        attempt: RunningAttempt,
        messages: Sequence[dict[str, Any]],
        *,
        number: int,
        policy: Policy,
        measures: Measures,
        beginning: Beginning | None = None,
    ) -> None:
        """A branch that begins with these messages."""
        self.number = number
        self.history = History(messages)
        self.policy = policy
        """Who is asked for its next turn; its account of tokens stays the one of the first."""
        self.tokens = policy.open_tokens()
        self.measures = measures
        self.beginning = beginning
        """Turns that it does not sample; None where it samples all."""
        self.planned: PlannedTurn | None = None
        """How the next turn is asked; None before turn 1, and until something follows a turn."""
        self.turns = 0
        """Its model calls that succeeded."""
        self.calling = False
        """Whether the trainer may be sampling for this branch right now."""
        self._attempt = attempt
        self._claim = attempt.claim
        self._journal = attempt.journal
        self._place = attempt.journal.place(number)
        self._stop = attempt.stop
        self._trace = attempt.trace

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript so far, in normal form; not to be changed."""
        return self.history.messages

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have a call of it in flight: that one ended cleanly, or is caught up with."""
        return self._claim.clean or self._place.is_own

    async def sample(self, *, train: bool = True, note: Callable[[SampledTurn], bytes] | None = None) -> SampledTurn:
        """Has the policy sample a turn. When this returns, its message is in the transcript and durable.

        A capability's `note` is written in the same step, for its `on_record` in Lua.
        """
        place, tokens, beginning, journal = self._place, self.tokens, self.beginning, self._journal
        if place.left:
            return self._replay_turn()
        turn = self.turns + 1
        bind_log(turn=turn)
        # A border: nothing is in flight, and the record has everything up to here.
        self._stop.check()
        certain = self._claim.clean or place.is_own
        # A recorded turn is asked of nobody.
        asks = beginning is None or turn >= beginning.turn
        if beginning is not None and not asks:
            beginning.check_steps(turn, self.history)
        if asks and not certain and not await self._may_ask_again():
            raise refuse_ambiguous(turn)
        failpoints.hit("worker.obs_before_call")
        if asks and not journal.called:
            await journal.note_calling()
        start = time.perf_counter()
        # Until the record is durable, and not only until the reply is here: a reply that only this worker knows is lost
        # with it, and then the turn is in doubt.
        self.calling = asks
        try:
            reply, asked = await self.policy.ask(self, turn)
            failpoints.hit("worker.reply_before_turn")
            # First the check, then everything else: a reply that contradicts the ledger leaves no record.
            train = train and (beginning is None or beginning.trains(turn))
            echo = await tokens.ingest_reply(reply, self.history.messages, asked, train=train)
        except BaseException as error:
            self._trace.chat(turn, start, summary=None, error=error)
            raise
        claim, sampled, llm_ms = self._claim, len(reply.token_ids), round((time.perf_counter() - start) * 1000, 3)
        summary = TurnSummary(
            turn=turn,
            prompt_tokens=len(tokens.ledger) - sampled,
            sampled_tokens=sampled,
            mask_sent=asked.mask_length or None,
            finish_reason=reply.finish_reason,
            drift=_LABELS[echo.label],
            tool_calls=len(reply.message.get("tool_calls") or ()),
            stop=tokens.stop_of(reply),
            policy_version=reply.policy_version,
            aborts=reply.aborts,
            resampled=asks and not certain and claim.spec.token_in,
            start_ms=round(claim.accepted_ms(start), 1),
            llm_ms=round(llm_ms, 1),
            difference=echo.difference,
        )
        record = TurnRecord(
            message=reply.message,
            entries=tokens.ledger.entries_since(place.entries),
            trainer=tokens.kind,
            # Of a turn that was not asked they are not here, which says nothing of the trainer.
            zero_logprobs=asks and not any(reply.logprobs) and not claim.spec.messages_only,
            summary=summary,
            llm_ms=llm_ms,
            branch=self.number,
        )
        if self._trace is not NO_TRACE:
            self._trace.chat(turn, start, summary=summary)
        if reply.beside and self.policy.beside is not None:
            self.policy.beside.add(reply.beside)
        if _log.isEnabledFor(logging.DEBUG):
            self._log_turn(record)
        result = self._apply_turn(record, reply.calls)
        noted = b"" if note is None else note(result)
        result.noted = await journal.write(record, turns=len(self.measures.turns), note=noted)
        self.calling = False
        # Protocol v1 has no batch whose other rollouts would need to know it.
        if not claim.spec.v1 and self.policy.is_news(claim.batch_id):
            await journal.note_idempotent()
        return result

    async def append_messages(self, messages: Sequence[dict[str, Any]], *, stored: bool = False) -> None:
        """Appends messages of the environment (user turns, for instance) after a sampled turn and its results.

        Where they are `stored` elsewhere, and another attempt would append the same, their record is written with the
        turn that follows.
        """
        if not self._replay_observation():
            self._check_appendable()
            record = ObservationRecord(
                messages=normal_form(messages),
                entries=(),
                planned=NOT_PLANNED,
                tools_ms=0.0,
                tool_calls=0,
                branch=self.number,
            )
            await self._observe(record, later=stored)

    async def edit(self, messages: Sequence[dict[str, Any]]) -> None:
        """Makes `messages` the whole history: truncated, summarised, reordered.

        What was sampled so far stays a training sample under the context in which it was sampled; the edited history
        is the prompt of a new one. The next call carries an explicit mask for all of it.
        """
        if self._place.left:
            record = self._place.replay(EditRecord)
            self.tokens.ledger.absorb(record.entries)
            self.history.replace(record.messages)
            self.planned = record.planned
            return
        if not self.turns:
            raise AgentMisuse("edit: nothing was sampled yet; change the rollout's own messages instead")
        before, whole = list(self.messages), normal_form(messages)
        await self.tokens.replace(whole, self.turns)
        self.history.replace(whole)
        try:
            planned = await self.policy.plan(self, self.turns + 1, edited=True)
        except BaseException:
            self.history.replace(before)
            raise
        self.planned = planned
        entries = self.tokens.ledger.entries_since(self._place.entries)
        record = EditRecord(messages=whole, entries=entries, planned=planned, branch=self.number)
        await self._journal.write(record, turns=len(self.measures.turns))

    async def _observe(self, record: ObservationRecord, *, later: bool = False) -> None:
        """Completes the record of messages that follow a turn: its entries, and how the next turn is asked."""
        if any(message["role"] == "assistant" for message in record.messages):
            # What stands before it would be in no prompt, because a turn follows what was said since the last one.
            raise AgentMisuse("an assistant's message that was not sampled can't be appended: give the whole to edit()")
        history, start, turn = self.history, time.perf_counter(), self.turns
        known = len(history.messages)
        history.append(record.messages)
        try:
            await self.tokens.append(history.since_last_turn(), history.through_last_turn(), turn)
            record.planned = await self.policy.plan(self, turn + 1)
        except BaseException:
            # They are no part of the transcript before the policy can be asked with them.
            history.cut(known)
            raise
        record.entries = self.tokens.ledger.entries_since(self._place.entries)
        RENDER_SECONDS.observe(time.perf_counter() - start)
        self.measures.add_observation(record)
        self.planned = record.planned
        await self._journal.write(record, turns=len(self.measures.turns), later=later)

    def _replay_turn(self) -> SampledTurn:
        """Applies the step's record, which an earlier attempt has made."""
        record = self._place.replay(TurnRecord)
        self.tokens.ledger.absorb(record.entries)
        # Before the turn's own message is appended: these are the messages that it was asked with.
        self.tokens.resume(record.trainer, self.messages)
        return self._apply_turn(record)

    def _replay_observation(self) -> bool:
        """Applies the step's record, if an earlier attempt has made it; says whether."""
        if not self._place.left:
            return False
        record = self._place.replay(ObservationRecord)
        self.tokens.ledger.absorb(record.entries)
        self.measures.add_observation(record)
        self.planned = record.planned
        self.history.append(record.messages)
        return True

    def _check_appendable(self) -> None:
        if not self.turns or (self.planned is not None and self.planned.edited):
            raise AgentMisuse("messages follow a sampled turn: call sample() first, or give the messages to edit()")

    def _apply_turn(self, record: TurnRecord, calls: Sequence[ToolCall] | None = None) -> SampledTurn:
        """Counts a turn; `calls` are those of its message, where they were read already."""
        self.turns += 1
        self.measures.add_turn(record)
        self.history.append((record.message,))
        self.planned = None
        if calls is None:
            calls = Message.model_validate(record.message).tool_calls or []
        summary = record.summary
        return SampledTurn(
            turn=summary.turn,
            message=record.message,
            tool_calls=calls,
            finish_reason=summary.finish_reason,
            sampled=summary.sampled_tokens,
            # A trainer's message may hold anything under this key.
            faults=record.message.get(CALL_FAULTS, {}) if self._claim.spec.token_in else {},
        )

    async def _may_ask_again(self) -> bool:
        """Whether a turn that a dead worker may have asked for may be asked again (`policy/idempotence.py`)."""
        if self.policy.may_repeat or await self._journal.is_idempotent():
            return True
        return await self.policy.ask_idempotent()

    def _log_turn(self, record: TurnRecord) -> None:
        before = self.measures.turns[-1].prompt_tokens if self.measures.turns else None
        runs = " ".join(f"{s.kind}:{s.n}={int(s.trained)}" for s in self.tokens.ledger.segments)
        log_event(
            _log, logging.DEBUG, "turn sampled", summary=repr(record.summary), prompt_before=before, segments=runs
        )


def refuse_ambiguous(turn: int) -> AmbiguousTurn:
    """Makes the error for a turn that a dead worker may have asked for."""
    return AmbiguousTurn(
        f"turn {turn}: the worker that had this rollout died, and may have asked the trainer for this turn; the "
        "trainer does not promise that asking again is safe (idempotent: true would, or the header X-Idempotent-Turns)"
    )
