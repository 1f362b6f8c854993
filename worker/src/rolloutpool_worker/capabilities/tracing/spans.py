"""AttemptSpans makes the spans of one attempt; all attempts of a rollout are one OpenTelemetry trace.

Spans have the names that OpenTelemetry gives agents:

    invoke_agent AGENT        the rollout, from its acceptance to its end; sent by the worker that ended it
      attempt N               from a claim until the rollout left that worker
        chat                  one turn: the call of the trainer, its repetitions, the check of its reply
        execute_tool NAME     one tool call

All ids follow from the uid (`protocol/trace.py`), so attempts on different workers are one trace without a word between
them. A callback carries `traceparent` with the id of its `chat` span, which a trainer's own spans then continue.

Attributes are ids, names of ours, counts and policy versions, never a text of the rollout. The rollouts of one group
are sampled together. Spans are made when what they describe is over, and a thread sends them; a collector that is slow
or away costs spans and nothing else. A rollout that was ended from outside has no `invoke_agent` span.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from rolloutpool_common.errors import RolloutError
from rolloutpool_common.protocol.result import RolloutResult, ToolTime, TurnSummary
from rolloutpool_common.protocol.trace import span_id_of, trace_id_of, traceparent
from rolloutpool_common.store import Claim
from rolloutpool_worker.capabilities.tracing.sender import Attributes, SpanSender, TraceSpan
from rolloutpool_worker.tracing import RolloutTrace

UNKNOWN_TOOL = "unknown"


class AttemptSpans(RolloutTrace):
    """Makes the spans of one attempt, each when what it describes is over."""

    def __init__(self, sender: SpanSender, claim: Claim) -> None:
        """Takes who sends them, and the claim that the attempt has."""
        self._sender = sender
        self._claim = claim
        self._trace_id = trace_id_of(claim.uid)
        self._root = span_id_of(claim.uid)
        self._span = span_id_of(claim.uid, "attempt", claim.attempt)
        # Between the two clocks; spans have wall-clock times.
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self._server: Attributes = {}
        # An impossible host or port fails the call, with a better error.
        with suppress(ValueError):
            server = urlsplit(claim.spec.server_url)
            self._server = {"server.address": server.hostname, "server.port": server.port}

    def traceparent(self, turn: int) -> str:
        return traceparent(self._claim.uid, self._chat_id(turn))

    def chat(self, turn: int, begun: float, *, summary: TurnSummary | None, error: BaseException | None = None) -> None:
        known: Attributes = {}
        if summary is not None:
            known = {
                "gen_ai.usage.input_tokens": summary.prompt_tokens,
                "gen_ai.usage.output_tokens": summary.sampled_tokens,
                "rolloutpool.policy_version": summary.policy_version,
                "rolloutpool.drift": summary.drift,
            }
        about: Attributes = {"gen_ai.operation.name": "chat", "rolloutpool.turn": turn, **self._server, **known}
        failed = None if error is None else _name_of(error)
        self._send(TraceSpan("chat", self._chat_id(turn), self._span, begun, about, error=failed, is_call=True))

    def tools(self, turn: int, begun: float, times: Sequence[ToolTime], known: Collection[str]) -> None:
        for place, used in enumerate(times):
            name = used.name if used.name in known else UNKNOWN_TOOL
            span_id = span_id_of(self._claim.uid, "tool", self._claim.attempt, turn, place)
            about: Attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "rolloutpool.turn": turn,
            }
            ended, failed = begun + used.ms / 1000, None if used.ok else "tool_error"
            self._send(TraceSpan(f"execute_tool {name}", span_id, self._span, begun, about, ended, failed))

    def attempt(self, outcome: str) -> None:
        claim = self._claim
        about: Attributes = {
            "rolloutpool.attempt": claim.attempt,
            "rolloutpool.worker_id": claim.worker_id,
            "rolloutpool.outcome": outcome,
            "rolloutpool.replayed_records": claim.journal_length,
        }
        self._send(TraceSpan(f"attempt {claim.attempt}", self._span, self._root, claim.claimed_at, about))

    def rollout(self, result: RolloutResult) -> None:
        claim, agent = self._claim, self._claim.spec.agent
        about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.usage.output_tokens": result.response_tokens,
            "rolloutpool.uid": claim.uid,
            "rolloutpool.batch_id": claim.batch_id,
            "rolloutpool.group": claim.group,
            "rolloutpool.attempt": claim.attempt,
            "rolloutpool.status": result.status.value,
            "rolloutpool.finish_reason": result.finish_reason.value,
            "rolloutpool.turns": result.num_llm_calls,
        }
        accepted = claim.claimed_at - claim.queued_ms / 1000
        failure = None if result.failure is None else result.failure.category.value
        self._send(TraceSpan(f"invoke_agent {agent}", self._root, None, accepted, about, error=failure))

    def _chat_id(self, turn: int) -> str:
        return span_id_of(self._claim.uid, "turn", self._claim.attempt, turn)

    def _send(self, span: TraceSpan) -> None:
        self._sender.send(span, self._trace_id, self._offset_ns)


def _name_of(error: BaseException) -> str:
    return error.category.value if isinstance(error, RolloutError) else type(error).__name__
