"""How an attempt's agent has ended, and the result that is made of it: the record of what has happened until then."""

from typing import Any, NamedTuple

from rolloutpool_common.outcomes import Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.conversation import Conversation

__all__ = ["AgentEnd", "failed", "make_result"]


class AgentEnd(NamedTuple):
    """How the agent's run has ended."""

    status: RolloutStatus
    reason: FinishReason
    failure: Failure | None = None


def failed(failure: Failure) -> AgentEnd:
    """The outcome of a rollout that has failed."""
    return AgentEnd(RolloutStatus.FAILED, FinishReason.ERROR, failure)


def make_result(
    claim: Claim,
    outcome: AgentEnd,
    talk: Conversation | None,
    *,
    tokenizer: dict[str, str],
    tokenizer_ms: float,
    total_ms: float,
    waited_for: Waiting | None = None,
) -> RolloutResult:
    """Makes the record of what has happened, under this outcome. Only reads, so a thread may do it.

    Args:
        claim: Of the rollout.
        outcome: How its run has ended.
        talk: Its conversation; None where it had none yet.
        tokenizer: The tokenizer's fingerprint.
        tokenizer_ms: How long the attempt waited for the tokenizer.
        total_ms: How long the attempt took.
        waited_for: What an expired rollout waited for.
    """
    spec = claim.spec
    known: dict[str, Any] = {}
    spans = Spans(queued_ms=claim.queued_ms, tokenizer_ms=tokenizer_ms, total_ms=total_ms)
    if talk is not None:
        measures = talk.measures
        spans.llm_ms, spans.tools_ms = measures.llm_ms, measures.tools_ms
        known = {
            "messages": talk.messages,
            "samples": talk.tokens.ledger.samples(),
            "alignment": talk.alignment,
            "drift": dict(measures.drift),
            "warnings": measures.warnings(),
            "turns": measures.turns,
            "num_llm_calls": talk.turns,
            "num_tool_calls": measures.tool_calls,
            "prompt_tokens": sum(turn.prompt_tokens for turn in measures.turns),
            "response_tokens": talk.sampled_tokens,
            "max_context_tokens": measures.max_context,
            "trace": measures.trace if spec.metadata.get("debug_trace") else None,
        }
    return RolloutResult(
        uid=claim.uid,
        rollout_id=spec.rollout_id,
        batch_id=claim.batch_id,
        index=claim.index,
        group=claim.group,
        labels=spec.labels,
        metadata=spec.metadata,
        status=outcome.status,
        finish_reason=outcome.reason,
        failure=outcome.failure,
        waited_for=waited_for,
        spans=spans,
        attempt=claim.attempt,
        worker=claim.worker_id,
        tokenizer=tokenizer,
        **known,
    )
