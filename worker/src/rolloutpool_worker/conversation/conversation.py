"""One rollout's conversation: messages, tokens, journal. The only writer of the three.

Everything that happened is in the journal before its consequences leave the worker: a turn before its tools run, an
observation before the next model call. An agent replays: on another worker the same agent runs again from the start,
and `sample`, `run_tools`, `say` and `edit` return what the journal has, until it ends; then they go on for real.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from rolloutpool_common.errors import RequestChanged, TrainerStatusError, WorkerFault
from rolloutpool_common.outcomes import Boundary
from rolloutpool_common.process import failpoints
from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.messages import Message, ToolCall
from rolloutpool_common.protocol.result import Alignment, StopToken, TurnRecord
from rolloutpool_common.store import Claim
from rolloutpool_common.tokens.entries import parse_entry
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.mask_plan import MaskPlan, TrainerKind, impossible
from rolloutpool_worker.conversation.tokens import UNVERIFIED, TokenTrack
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.policy import CallbackChannel, MessageBytes, Reply, TurnBody, TurnCall
from rolloutpool_worker.policy.callback import refuse_ambiguous
from rolloutpool_worker.tools import ToolContext, ToolRunner

__all__ = ["AgentMisuse", "Conversation", "Measures", "SampledTurn"]

_log = logging.getLogger(__name__)

MASK_REFUSED = 422


class AgentMisuse(WorkerFault):
    """The agent asked the conversation for something that cannot be."""

    boundary = Boundary.AGENT
    retryable = False


@dataclass(frozen=True)
class SampledTurn:
    """What the policy did in one turn."""

    turn: int
    message: dict[str, Any]
    tool_calls: list[ToolCall]
    finish_reason: str | None
    sampled: int
    """Number of sampled tokens."""


@dataclass
class Measures:
    """What a result reports about the way, besides tokens."""

    turns: list[TurnRecord] = field(default_factory=list)
    drift: Counter[str] = field(default_factory=Counter)
    trace: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: int = 0
    sampled_tokens: int = 0
    llm_ms: float = 0.0
    tools_ms: float = 0.0
    forked: bool = False
    max_context: int = 0
    zero_logprobs: bool = True
    """Whether every log-probability so far was 0.0, which no real policy reports."""

    def warnings(self) -> list[str]:
        """What a trainer should look at although nothing failed."""
        ended = [turn.stop for turn in self.turns if turn.stop is not StopToken.ABSENT]
        found = []
        if ended and all(stop is StopToken.WITHHELD for stop in ended):
            found.append("stop_token_withheld")
        if self.turns and self.zero_logprobs:
            found.append("zero_logprobs")
        return found


class Conversation:
    """What an agent talks to: `sample`, `run_tools`, `say`, `edit`, and the read-only properties."""

    def __init__(
        self,
        claim: Claim,
        *,
        journal: Journal,
        channel: CallbackChannel,
        tokens: TokenTrack,
        tools: ToolRunner,
        stop: RolloutStop,
    ) -> None:
        self.claim = claim
        self.spec = claim.spec
        self.tokens = tokens
        self.measures = Measures()
        self.calling = False
        """Whether the trainer may be sampling for us right now."""
        self.messages: list[dict[str, Any]] = []
        self._wire = MessageBytes()
        self._journal = journal
        self._channel = channel
        self._tools = tools
        self._stop = stop
        self._entries = 0
        self._plan: MaskPlan | None = None
        """How the next turn is asked; None where nothing was put in between."""
        self._digest: str | None = None
        """Of the next turn's body, as it is journaled."""
        self._body: TurnBody | None = None
        """The next turn's body, where this attempt has made it already: hashing a long one twice takes milliseconds."""
        self._append([message.wire() for message in claim.spec.messages])

    @property
    def turns(self) -> int:
        """Model calls that succeeded."""
        return len(self.measures.turns)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, over all turns."""
        return self.measures.sampled_tokens

    @property
    def context_tokens(self) -> int:
        """Length of the current context: what the next prompt will have at least."""
        return len(self.tokens.ledger)

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have left a model call behind: it ended cleanly, or we are past that turn."""
        return self.claim.clean or self._journal.beyond_inherited

    @property
    def alignment(self) -> Alignment | None:
        """How well the tokens are proved; None before the first sampled one."""
        if not self.measures.turns:
            return None
        if any(turn.drift == UNVERIFIED for turn in self.measures.turns):
            return Alignment.UNVERIFIED
        return Alignment.FORKED if self.measures.forked else Alignment.EXACT

    async def sample(self, *, train: bool = True) -> SampledTurn:
        """Lets the policy speak; its message is appended to the transcript and durable when this returns.

        With `train=False` the turn stays in the context with mask 0.
        """
        record = self._replay("turn")
        if record is None:
            record = await self._sample_now(train)
        return self._apply_turn(record)

    async def run_tools(self, turn: SampledTurn, *, then: Sequence[dict[str, Any]] = ()) -> None:
        """Runs the tool calls of a turn and appends their results, and behind them the messages `then`."""
        record = self._replay("obs")
        if record is None:
            self._check_appendable()
            self._stop.check()
            failpoints.hit("worker.turn_before_tools")
            start = time.perf_counter()
            contexts = [
                ToolContext(self.claim.uid, self.spec.rollout_id, turn.turn, call.id, self.spec.metadata)
                for call in turn.tool_calls
            ]
            results = await self._tools.run(turn.tool_calls, contexts)
            elapsed = (time.perf_counter() - start) * 1000
            record = await self._observe([*results, *_normal(then)], tools_ms=elapsed, tool_calls=len(results))
        self._apply_observation(record)

    async def say(self, messages: Sequence[dict[str, Any]]) -> None:
        """Appends messages of the environment (user turns, for instance) behind a sampled turn and its results."""
        record = self._replay("obs")
        if record is None:
            self._check_appendable()
            record = await self._observe(_normal(messages), tools_ms=0.0, tool_calls=0)
        self._apply_observation(record)

    async def edit(self, messages: Sequence[dict[str, Any]]) -> None:
        """Makes `messages` the whole history: truncated, summarised, reordered.

        What was sampled so far stays a training sample under the context in which it was sampled; the edited history
        is the prompt of a new one. The next call carries an explicit mask for all of it.
        """
        record = self._replay("edit")
        if record is None:
            if not self.turns:
                raise AgentMisuse("edit: nothing was sampled yet; change the rollout's own messages instead")
            history = _normal(messages)
            await self.tokens.replace(history, self.turns)
            entries = self._new_entries()
            asked = await self._plan_next(history, MessageBytes(history))
            record = {"kind": "edit", "messages": history, "entries": entries, **asked}
            await self._journal.write(record, turns=self.turns)
        self.tokens.edited = True
        self._expect(record)
        self.messages.clear()
        self._wire = MessageBytes()
        self._append(record["messages"])

    # --- for real -----------------------------------------------------------------------------------------------

    async def _sample_now(self, train: bool) -> dict[str, Any]:
        self._stop.check()
        turn = self.turns + 1
        if not self.certain and not self.spec.may_repeat:
            raise refuse_ambiguous(turn)
        failpoints.hit("worker.obs_before_call")
        start = time.perf_counter()
        plan = self._plan
        self.calling = True
        reply, sent = await self._ask(plan, turn)
        failpoints.hit("worker.reply_before_turn")
        mask = None if plan is None or sent is None else (plan, sent)
        drift = await self.tokens.ingest_reply(reply, self.messages, turn, mask, train=train)
        measured = TurnRecord(
            turn=turn,
            prompt_tokens=len(self.tokens.ledger) - len(reply.token_ids),
            sampled_tokens=len(reply.token_ids),
            mask_sent=sent or None,
            finish_reason=reply.finish_reason,
            drift=drift,
            tool_calls=len(reply.message.get("tool_calls") or ()),
            stop=self.tokens.stop_of(reply),
            policy_version=reply.policy_version,
        )
        record = {
            "kind": "turn",
            "message": reply.message,
            "entries": self._new_entries(),
            "trainer": self.tokens.kind.value,
            "zero_logprobs": not any(reply.logprobs),
            "record": measured.model_dump(),
            "llm_ms": (time.perf_counter() - start) * 1000,
        }
        await self._journal.write(record, turns=turn)
        self.calling = False
        if _log.isEnabledFor(logging.DEBUG):
            before = self.measures.turns[-1].prompt_tokens if self.measures.turns else None
            runs = " ".join(f"{s.kind}:{s.n}={int(s.trained)}" for s in self.tokens.ledger.segments)
            _log.debug("rollout %s: %r; prompt before %s; segments:n=mask %s", self.claim.uid, measured, before, runs)
        return record

    async def _ask(self, plan: MaskPlan | None, turn: int) -> tuple[Reply, int | None]:
        """The reply, and the length of the mask that the trainer accepted (None on turn 1)."""
        tokens = self.tokens
        if plan is None:
            return await self._channel.sample(TurnCall(turn, self._channel.body(self._wire, None))), None
        last = len(plan.lengths) - 1
        for n, length in enumerate(plan.lengths):
            body = self._planned_body(plan, turn) if n == 0 else self._channel.body(self._wire, plan.mask(n))
            call = TurnCall(turn, body, again=n > 0, edited=tokens.edited, echo=tokens.offer_prefix(turn))
            try:
                return await self._channel.sample(call), length
            except TrainerStatusError as error:
                if error.http_status == MASK_REFUSED and n == last and plan.rerender is not None and plan.rerender < 0:
                    raise impossible(plan.rerender, turn) from error
                if error.http_status != MASK_REFUSED or n == last:
                    raise
                _log.info(
                    "rollout %s turn %d: a mask of %d was refused, trying %d",
                    self.claim.uid,
                    turn,
                    length,
                    plan.lengths[n + 1],
                )
        raise AssertionError("unreachable: the last length returns or raises")

    async def _observe(self, messages: list[dict[str, Any]], **measured: float) -> dict[str, Any]:
        behind = list(takewhile(lambda message: message["role"] != "assistant", reversed(self.messages)))[::-1]
        # Together with those that lie there already: some templates merge messages of one turn.
        await self.tokens.append(self._with_tool_names([*behind, *messages]), self.turns)
        entries = self._new_entries()
        asked = await self._plan_next([*self.messages, *messages], self._wire.followed_by(messages))
        record = {"kind": "obs", "messages": messages, "entries": entries, **asked, **measured}
        await self._journal.write(record, turns=self.turns)
        return record

    async def _plan_next(self, messages: Sequence[dict[str, Any]], wire: MessageBytes) -> dict[str, Any]:
        """How the next turn is asked. To be journaled: an attempt that asks it again must ask it with the same body."""
        plan = await self.tokens.plan_mask(messages, self.turns + 1)
        self._body = self._channel.body(wire, plan.mask(0))
        return {"plan": vars(plan), "digest": self._body.digest}

    def _planned_body(self, plan: MaskPlan, turn: int) -> TurnBody:
        """The next turn's body; raises `RequestChanged` where it is not the one that was journaled."""
        body = self._body or self._channel.body(self._wire, plan.mask(0))
        if body.digest != self._digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        return body

    def _check_appendable(self) -> None:
        if not self.turns or self.tokens.edited:
            raise AgentMisuse("messages go behind a sampled turn: let the policy speak first, or give them to edit()")

    def _new_entries(self) -> list[dict[str, Any]]:
        ledger = self.tokens.ledger
        fresh = [entry.model_dump(mode="json", exclude_none=True) for entry in ledger.entries_since(self._entries)]
        self._entries += len(fresh)
        return fresh

    # --- replay and bookkeeping ---------------------------------------------------------------------------------

    def _replay(self, kind: str) -> dict[str, Any] | None:
        record = self._journal.replay(kind)
        if record is not None:
            self._body = None
            self.tokens.ledger.absorb(parse_entry(entry) for entry in record["entries"])
            self._entries += len(record["entries"])
            if kind == "turn":
                self.tokens.resume(TrainerKind(record["trainer"]), self.messages)
        return record

    def _apply_turn(self, record: dict[str, Any]) -> SampledTurn:
        measured = TurnRecord.model_validate(record["record"])
        measures = self.measures
        measures.turns.append(measured)
        measures.sampled_tokens += measured.sampled_tokens
        measures.llm_ms += record["llm_ms"]
        measures.zero_logprobs = measures.zero_logprobs and record["zero_logprobs"]
        measures.max_context = max(measures.max_context, measured.prompt_tokens + measured.sampled_tokens)
        if measured.drift not in NO_DRIFT:
            measures.drift[measured.drift] += 1
        measures.forked = measures.forked or any(entry["op"] == "fork" for entry in record["entries"])
        self._append([record["message"]])
        self._plan = self._digest = self._body = None
        message = Message.model_validate(record["message"])
        if self.spec.metadata.get("debug_trace"):
            measures.trace.append(
                {
                    "turn": measured.turn,
                    "llm_request": {"prompt_length": measured.prompt_tokens, "response_mask_len": measured.mask_sent},
                    "assistant_message": record["message"],
                    "tool_calls": record["message"].get("tool_calls") or [],
                    "tool_results": [],
                    "llm_response_token_count": measured.sampled_tokens,
                }
            )
        return SampledTurn(
            turn=measured.turn,
            message=record["message"],
            tool_calls=message.tool_calls or [],
            finish_reason=measured.finish_reason,
            sampled=measured.sampled_tokens,
        )

    def _expect(self, record: dict[str, Any]) -> None:
        self._plan, self._digest = MaskPlan(**record["plan"]), record["digest"]

    def _apply_observation(self, record: dict[str, Any]) -> None:
        self._expect(record)
        self._append(record["messages"])
        self.measures.tools_ms += record["tools_ms"]
        self.measures.tool_calls += int(record["tool_calls"])
        if self.measures.trace and record["tool_calls"]:
            self.measures.trace[-1]["tool_results"] = record["messages"]

    def _append(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages.extend(messages)
        self._wire.append(messages)

    def _with_tool_names(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tool messages with the name of what was called, which some templates print."""
        calls: list[dict[str, Any]] = next(
            (m["tool_calls"] for m in reversed(self.messages) if m.get("tool_calls")), []
        )
        names = {call["id"]: call["function"]["name"] for call in calls}
        return [
            {**m, "name": names[m["tool_call_id"]]}
            if m["role"] == "tool" and "name" not in m and m.get("tool_call_id") in names
            else m
            for m in messages
        ]


def _normal(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        return [Message.model_validate(message).wire() for message in messages]
    except ValidationError as error:
        raise AgentMisuse(f"the agent gave something that is not a message ({error.error_count()} faults)") from None
