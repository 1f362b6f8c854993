"""One rollout's conversation: messages, token ledger, journal. The only writer of the three.

Invariants: the ledger holds only what is proved (the trainer's own prompt, sampled ids verbatim, rendered glue).
Everything that happened is in the journal before its consequences leave the worker: a TURN before its tools run, an
OBS before the next model call. An agent replays: on another worker the same agent runs again from the start, and
`sample` and `observe` return what the journal has, until it ends; then they go on for real.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_common.errors import (
    AlignmentUnverified,
    RolloutPoolError,
    TemplateRefusedTurn,
    TemplateUnusable,
    TrainerProtocolError,
)
from rolloutpool_common.ledger import EchoKind, TokenLedger, parse_entry
from rolloutpool_common.protocol.messages import Message, ToolCall
from rolloutpool_common.protocol.result import Alignment, TurnRecord
from rolloutpool_common.rendering import (
    ChatTokenizer,
    Delta,
    DriftLabel,
    TemplateRefused,
    classify,
    verify_prompt_contains,
)
from rolloutpool_common.store import Claim, Store
from rolloutpool_worker.channel import CallbackChannel, Reply, TurnCall
from rolloutpool_worker.channel.callback import refuse_ambiguous
from rolloutpool_worker.drain import Drain
from rolloutpool_worker.outage import held
from rolloutpool_worker.tools import ToolContext, ToolRunner

__all__ = ["Conversation", "SampledTurn", "StaleJournal"]

PLAIN_RESULT = [{"role": "tool", "tool_call_id": "callabcde", "name": "add", "content": "38"}]

OFF_LOOP_CHARACTERS = 16_000
"""From here on tokenising would hold up the loop for milliseconds, so a thread does it."""


class StaleJournal(RolloutPoolError):
    """The journal does not fit what the agent does now; was the agent changed between two attempts?"""


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
    llm_ms: float = 0.0
    tools_ms: float = 0.0
    forked: bool = False
    max_context: int = 0


class Conversation:
    """What an agent talks to. Agents use `sample`, `run_tools`, `say` and the read-only properties."""

    def __init__(
        self,
        claim: Claim,
        *,
        store: Store,
        channel: CallbackChannel,
        tokenizer: ChatTokenizer,
        tools: ToolRunner,
        drain: Drain,
        journal: list[dict[str, Any]],
    ) -> None:
        self.claim = claim
        self.spec = claim.spec
        self.ledger = TokenLedger(tokenizer.fingerprint)
        self.measures = Measures()
        self.messages: list[dict[str, Any]] = []
        self._wire: list[bytes] = []
        self._store = store
        self._channel = channel
        self._tokenizer = tokenizer
        self._tools = tools
        self._drain = drain
        self._journal = journal
        self._replayed = 0
        self._entries = 0
        self.calling = False
        """Whether the trainer may be sampling for us right now."""
        self._append([message.wire() for message in claim.spec.messages])

    @property
    def turns(self) -> int:
        """Model calls that succeeded."""
        return len(self.measures.turns)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, over all turns."""
        return sum(turn.sampled_tokens for turn in self.measures.turns)

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have left a model call behind: it ended cleanly, or we are past that turn."""
        return self.claim.clean or self._replayed > self.claim.journal_length

    @property
    def alignment(self) -> Alignment | None:
        """How well the tokens are proved; None before the first sampled one."""
        if not self.measures.turns:
            return None
        if self._unverified:
            return Alignment.UNVERIFIED
        return Alignment.FORKED if self.measures.forked else Alignment.EXACT

    @property
    def _unverified(self) -> bool:
        return any(turn.drift == UNVERIFIED for turn in self.measures.turns)

    async def sample(self) -> SampledTurn:
        """Lets the policy speak; its message is appended to the transcript and durable when this returns."""
        record = self._next_record("turn")
        if record is None:
            record = await self._sample_now()
            await self._write(record)
        return self._apply_turn(record)

    async def run_tools(self, turn: SampledTurn) -> None:
        """Runs the tool calls of a turn and appends their results."""
        record = self._next_record("obs")
        if record is None:
            self._drain.check()
            start = time.perf_counter()
            contexts = [
                ToolContext(self.claim.uid, self.spec.rollout_id, turn.turn, call.id, self.spec.metadata)
                for call in turn.tool_calls
            ]
            results = await self._tools.run(turn.tool_calls, contexts)
            elapsed = (time.perf_counter() - start) * 1000
            record = await self._observe_now(results, {"tools_ms": elapsed, "tool_calls": len(results)})
        self._apply_observation(record)

    async def say(self, messages: Sequence[dict[str, Any]]) -> None:
        """Appends messages of the environment (user turns, for instance)."""
        record = self._next_record("obs")
        if record is None:
            try:
                normal = [Message.model_validate(message).wire() for message in messages]
            except ValidationError as error:
                raise StaleJournal(
                    f"an agent said something that is not a message: {error.error_count()} faults"
                ) from None
            record = await self._observe_now(normal, {"tools_ms": 0.0, "tool_calls": 0})
        self._apply_observation(record)

    # --- for real -----------------------------------------------------------------------------------------------

    async def _sample_now(self) -> dict[str, Any]:
        self._drain.check()
        turn = self.turns + 1
        if not self.certain and not self.spec.idempotent:
            raise refuse_ambiguous(turn)
        start = time.perf_counter()
        pending = self.ledger.pending_glue
        mask = [0] * pending if turn > 1 and pending else None
        call = TurnCall(turn, b"[" + b",".join(self._wire) + b"]", mask)
        self.calling = True
        reply = await self._channel.sample(call)
        drift = await self._verify(reply, turn)
        self.ledger.append_sampled(reply.token_ids, reply.logprobs, turn=turn, policy_version=reply.policy_version)
        prompt = len(self.ledger) - len(reply.token_ids)
        entries = [e.model_dump(mode="json", exclude_none=True) for e in self.ledger.entries_since(self._entries)]
        self._entries = len(self.ledger.entries)
        return {
            "kind": "turn",
            "message": reply.message,
            "entries": entries,
            "record": {
                "turn": turn,
                "prompt_tokens": prompt,
                "sampled_tokens": len(reply.token_ids),
                "mask_sent": None if mask is None else len(mask),
                "finish_reason": reply.finish_reason,
                "drift": drift,
                "tool_calls": len(reply.message.get("tool_calls") or ()),
                "policy_version": reply.policy_version,
            },
            "llm_ms": (time.perf_counter() - start) * 1000,
        }

    async def _verify(self, reply: Reply, turn: int) -> str:
        """Holds the prompt that the policy saw against the ledger; returns the drift's label."""
        echo = reply.prompt_token_ids
        if echo is None:
            if not self.spec.allow_unverified:
                raise AlignmentUnverified(f"turn {turn}: {AlignmentUnverified.__doc__}")
            if turn == 1:
                self.ledger.seed(
                    self._tokenizer.render_prompt(self.messages, template_kwargs=self.spec.template_kwargs)
                )
            return UNVERIFIED
        if turn == 1:
            if not echo:
                raise TrainerProtocolError("turn 1: prompt_token_ids is empty")
            await _maybe_off_loop(len(echo), verify_prompt_contains, self._tokenizer, echo, self.messages)
            self.ledger.seed(echo)
            return DriftLabel.NONE.value
        comparison = self.ledger.compare(echo)
        if comparison.kind is EchoKind.EQUAL:
            return DriftLabel.NONE.value
        label = await _maybe_off_loop(len(echo), classify, self.ledger, echo, self._tokenizer)
        self.ledger.accept_echo(echo)
        return str(label.value)

    async def _observe_now(self, messages: list[dict[str, Any]], measured: dict[str, Any]) -> dict[str, Any]:
        characters = sum(len(m["content"]) for m in messages if isinstance(m["content"], str))
        turn = self.turns
        delta = await _maybe_off_loop(characters, self._render, self._with_tool_names(messages))
        self.ledger.append_close(list(delta.close_ids), turn=turn)
        self.ledger.append_glue(list(delta.glue_ids), turn=turn)
        entries = [e.model_dump(mode="json", exclude_none=True) for e in self.ledger.entries_since(self._entries)]
        self._entries = len(self.ledger.entries)
        record = {"kind": "obs", "messages": messages, "entries": entries, **measured}
        await self._write(record)
        return record

    def _render(self, messages: list[dict[str, Any]]) -> Delta:
        last, kwargs = self.ledger.last_id, self.spec.template_kwargs
        try:
            return self._tokenizer.render_delta(messages, last_sampled_id=last, template_kwargs=kwargs)
        except TemplateRefused as refused:
            try:
                self._tokenizer.render_delta(PLAIN_RESULT, last_sampled_id=last, template_kwargs=kwargs)
            except TemplateRefused:
                raise TemplateUnusable(f"turn {self.turns}: {refused.message}") from None
            # An ordinary tool result can be rendered, so it is what the policy sampled that can't be answered.
            raise TemplateRefusedTurn(f"turn {self.turns}: {refused.message}") from None

    async def _write(self, record: dict[str, Any]) -> None:
        self._journal.append(record)
        self._replayed += 1
        turns = self.turns + (record["kind"] == "turn")
        await held(
            self._drain,
            self.claim.uid,
            lambda: self._store.rollouts.journal(self.claim, self._journal, turns=turns),
        )
        self.calling = False

    # --- replay and bookkeeping ---------------------------------------------------------------------------------

    def _next_record(self, kind: str) -> dict[str, Any] | None:
        """The journal's next record, if it has one; its tokens are replayed into the ledger."""
        if self._replayed >= len(self._journal):
            return None
        record = self._journal[self._replayed]
        if record["kind"] != kind:
            raise StaleJournal(f"record {self._replayed} is {record['kind']}, not {kind}: {StaleJournal.__doc__}")
        self._replayed += 1
        self.ledger.absorb(parse_entry(entry) for entry in record["entries"])
        self._entries = len(self.ledger.entries)
        return record

    def _apply_turn(self, record: dict[str, Any]) -> SampledTurn:
        measured = TurnRecord.model_validate(record["record"])
        measures = self.measures
        measures.turns.append(measured)
        measures.llm_ms += record["llm_ms"]
        measures.max_context = max(measures.max_context, measured.prompt_tokens + measured.sampled_tokens)
        if measured.drift not in (DriftLabel.NONE.value, UNVERIFIED):
            measures.drift[measured.drift] += 1
        measures.forked = measures.forked or any(entry["op"] == "fork" for entry in record["entries"])
        self._append([record["message"]])
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

    def _apply_observation(self, record: dict[str, Any]) -> None:
        self._append(record["messages"])
        self.measures.tools_ms += record["tools_ms"]
        self.measures.tool_calls += record["tool_calls"]
        if self.measures.trace and record["tool_calls"]:
            self.measures.trace[-1]["tool_results"] = record["messages"]

    def _append(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages.extend(messages)
        self._wire.extend(orjson.dumps(message) for message in messages)

    def _with_tool_names(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tool messages with the name of what was called, which some templates print."""
        names: dict[str, str] = {}
        for message in reversed(self.messages):
            if message.get("tool_calls"):
                names = {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
                break
        return [
            {**m, "name": names[m["tool_call_id"]]}
            if m["role"] == "tool" and "name" not in m and m.get("tool_call_id") in names
            else m
            for m in messages
        ]


UNVERIFIED = Alignment.UNVERIFIED.value


async def _maybe_off_loop(size: int, function: Any, *args: Any) -> Any:
    """Runs it here when it is small, in a thread when it would hold up the loop."""
    return await asyncio.to_thread(function, *args) if size > OFF_LOOP_CHARACTERS else function(*args)
