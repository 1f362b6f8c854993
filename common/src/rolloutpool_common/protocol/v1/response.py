"""Protocol v1's answer, and how a stored result becomes it.

The stored record says what happened. Protocol v1's clients get what v1 has always given them, with four quirks that
they may rely on:

1. A turn that ended at the length limit has the finish reason `stop`.
2. The turn that reached `max_tokens` is missing from the transcript.
3. An error has no transcript.
4. `max_context_tokens` is the sum of sampled tokens, not the longest context.

Where v1 has one text for everything else (`Internal server error`) or names no reason (`Failed to load tokenizer`), its
words are followed by the reason of the failure. It holds no text of prompts.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from rolloutpool_common.outcomes import Category, Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, Spans

FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "stop",
    FinishReason.STRATEGY: "stop",
    # No rollout of protocol v1 has one.
    FinishReason.ENVIRONMENT: "stop",
    FinishReason.MAX_TURNS: "max_turns",
    FinishReason.MAX_ASSISTANT_TURNS: "max_turns",
    FinishReason.MAX_USER_TURNS: "max_turns",
    FinishReason.MAX_TOKENS: "max_tokens",
    FinishReason.BUDGET_TOKENS: "max_tokens",
}
"""v1's word for each reason why a completed rollout ended."""

_OWN_TEXTS = {
    Category.RATE_LIMITED: "Trainer rate limit exceeded (429)",
    Category.NETWORK_ERROR: "Network error communicating with trainer",
    Category.INTERNAL_ERROR: "Internal server error",
}

_LONGEST_TEXT = 1_000
"""Characters of an error message: reasons quote templates and names, which may be of any length."""
_CONTEXT_TRUNCATION = "Invalid conversation state (possible context truncation): {}"


class V1Status(StrEnum):
    """Protocol v1 knows two outcomes."""

    COMPLETED = "COMPLETED"
    ERROR = "ERROR"


class V1Result(BaseModel):
    """Holds what protocol v1's answer has of a `RolloutResult`.

    To read all of a stored result would make lists of its ids and log-probabilities, which v1's answer leaves out.
    """

    rollout_id: str
    status: RolloutStatus
    finish_reason: FinishReason
    failure: Failure | None = None
    messages: list[Message] = Field(default_factory=list)
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    spans: Spans = Field(default_factory=Spans)
    trace: list[dict[str, Any]] | None = None


class RolloutMetrics(Answer):
    """Protocol v1's eight numbers. Latencies are wall milliseconds."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    """Sum over calls of the prompt's length."""
    response_tokens: int = 0
    """Sum over calls of the sampled tokens."""
    max_context_tokens: int = 0
    """On v1 the same sum of sampled tokens, 0 on errors; the result record has the true maximum."""


class RolloutResponse(Answer):
    """Protocol v1's answer; all keys are always present, in this order."""

    rollout_id: str
    status: V1Status
    final_messages: list[Message] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


def to_v1(result: RolloutResult | V1Result, *, tokenizer_name: str, timeout_seconds: float) -> RolloutResponse:
    """The answer of `POST /rollout` for this result."""
    metrics = RolloutMetrics(
        total_latency_ms=result.spans.total_ms,
        llm_latency_ms=result.spans.llm_ms,
        tool_latency_ms=result.spans.tools_ms,
        num_llm_calls=result.num_llm_calls,
        num_tool_calls=result.num_tool_calls,
        prompt_tokens=result.prompt_tokens,
        response_tokens=result.response_tokens,
        max_context_tokens=result.response_tokens,
    )
    trace = {} if result.trace is None else {"trace": result.trace}
    if result.status is RolloutStatus.COMPLETED:
        messages = result.messages
        if FINISH[result.finish_reason] == "max_tokens":
            messages = messages[:-1]
            trace = {"trace": trace["trace"][:-1]} if trace else {}
        return RolloutResponse(
            rollout_id=result.rollout_id,
            status=V1Status.COMPLETED,
            final_messages=messages,
            finish_reason=FINISH[result.finish_reason],
            metrics=metrics,
            extra_fields=trace,
        )
    response = RolloutResponse(rollout_id=result.rollout_id, status=V1Status.ERROR)
    if result.status is RolloutStatus.EXPIRED:
        response.error_message = f"Rollout timeout exceeded ({timeout_seconds}s)"
        return response
    metrics.max_context_tokens = 0
    response.metrics = metrics
    if result.failure is None:
        response.error_message = "Rollout cancelled"
        response.extra_fields = trace
        return response
    text, response.extra_fields = _error(result.failure, tokenizer_name)
    response.error_message = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    if result.failure.http_status is None:
        response.extra_fields |= trace
    return response


def _error(failure: Failure, tokenizer_name: str) -> tuple[str, dict[str, object]]:
    """Protocol v1's text and extra fields for a failure."""
    category, status = failure.category, failure.http_status
    if category is Category.TOKENIZER_ERROR:
        reason = failure.message.removeprefix(f"Tokenizer {tokenizer_name!r} cannot be used: ")
        return f"Failed to load tokenizer: {tokenizer_name}: {reason}", {"error_category": category.value}
    if status is not None:
        # v1 has no word of its own for a refused mask: 422 is one of the "other 4xx".
        name = Category.TRAINER_CLIENT_ERROR if category is Category.MASK_REFUSED else category
        text = {
            Category.RATE_LIMITED: _OWN_TEXTS[Category.RATE_LIMITED],
            Category.TRAINER_SERVER_ERROR: f"Trainer server error (status {status}) - retryable",
            Category.TRAINER_CLIENT_ERROR: f"Trainer client error (status {status}) - check request",
        }.get(name, f"Trainer returned error (status {status})")
        return text, {"error_category": name.value, "http_status": status}
    if category is Category.NETWORK_ERROR:
        return _OWN_TEXTS[category], {"error_category": category.value}
    if category is Category.TOOL_ERROR:
        return f"Failed to execute tools: {failure.message}", {"error_category": category.value}
    if category is Category.MASK_IMPOSSIBLE:
        return _CONTEXT_TRUNCATION.format(failure.message), {}
    if category is Category.TRAINER_PROTOCOL_ERROR and not failure.message.startswith("empty choices"):
        return _CONTEXT_TRUNCATION.format(failure.message), {}
    # v1 has no category of its own for these, so the text names it.
    text = f"{_OWN_TEXTS[Category.INTERNAL_ERROR]}: {category.value}: {failure.message}"
    return text, {"error_category": Category.INTERNAL_ERROR.value}
