"""The table of a batch: one row per rollout, of figures that people sort and filter by. No tokens, no texts.

A row is written beside the result when the rollout ends, as a JSON list: the values of `ENDED_FIELDS`, in this order.
New fields are added at the end, so that older rows, which are shorter, stay readable. A rollout that has not ended has
no row; the fields that it has already are read from its state.
"""

from typing import Any

from rolloutpool_common.composition import said_of
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.result import RolloutResult

MAX_MESSAGE = 300
MAX_VERSIONS = 16

ENDED_FIELDS = {
    "ended_ms": "when it ended, on Redis' clock, ms since 1970",
    "claimed_ms": "when its last attempt began, on the same clock",
    "status": "`queued`, `running`, `grading`, `completed`, `failed`, `cancelled`, `expired`",
    "rollout_id": "the caller's name for it",
    "finish_reason": "why it ended",
    "kind": "of its failure: `request`, `policy`, `infra`",
    "category": "of its failure",
    "message": "of its failure, or what it waited for when it expired or was cancelled, or how old its weights were; "
    "at most 300 characters",
    "alignment": "`exact`, `forked`, `unverified`",
    "drift": "list of the labels of its drifted turns, each once",
    "drifted_turns": "how many turns drifted",
    "warnings": "list",
    "turns": "model calls",
    "tool_calls": "calls of tools",
    "samples": "how many samples it has",
    "sampled_tokens": "tokens with mask 1",
    "tokens": "all tokens of its samples, prompts included",
    "max_context_tokens": "longest prompt and reply of one call",
    "queued_ms": "from acceptance to the claim that finished it",
    "tokenizer_ms": "loading its tokenizer",
    "llm_ms": "model calls",
    "tools_ms": "tools",
    "total_ms": "from that claim to the end",
    "attempt": "how many workers have claimed it",
    "worker": "the last worker that had it",
    "policy_versions": "list of the versions that sampled it, in order, at most 16",
    "mean_logprob": "mean of the sampling log-probabilities over the tokens with mask 1",
    "response_lengths": "list of the lengths of its samples' responses",
    "reward": "what its grader, or its environment, says that it is worth",
    "tool_errors": "calls of tools of which the policy read an error",
    "loop_ms": "waits of its records for the worker, which was busy with other rollouts",
    "redis_ms": "waits of its records for Redis",
}
"""Name and meaning, in the order in which they are stored."""
ROW_FIELDS = {
    "index": "its place in the batch",
    "uid": "the pool's name for it",
    "group": "its group",
    **ENDED_FIELDS,
}
"""All fields that a row may be asked for."""


class RowPage(Answer):
    """`GET /v1/batches/{id}/rollouts`: rows in columns."""

    batch_id: str
    total: int
    """Rollouts of the batch."""
    matched: int
    """Rollouts that pass the filter."""
    created_ms: int
    """When the batch was accepted, on Redis' clock, ms since 1970."""
    now_ms: int
    """The time on that clock."""
    columns: dict[str, list[Any]]
    """By field; all of one length. A value that a rollout does not have, or not yet, is null."""
    next_cursor: str | None
    """Pass it as `cursor`, with the same filter and order, to get the next rows; null after the last."""


class SummaryItem(Answer):
    """The row of a rollout with its place in the order in which the batch's rollouts ended."""

    cursor: str
    """Resume after this rollout by passing it as `cursor`."""
    summary: dict[str, Any]
    """Its row, by field."""


class SummaryPage(Answer):
    """`GET /v1/batches/{id}/results?view=summary`."""

    items: list[SummaryItem]
    next_cursor: str
    """Pass it to get what finished after this page; equals the request's when the page is empty."""
    complete: bool
    """All rollouts of the batch have ended and this page reaches the last of them."""


def row_values(result: RolloutResult) -> list[Any]:
    """Takes a row's values from a result: all of `ENDED_FIELDS` but the first two, which are on Redis' clock."""
    failure, spans, samples = result.failure, result.spans, result.samples
    said = failure or result.waited_for
    message = said.message if said else next(iter(said_of(result).values()), None)
    sampled = sum(sum(sample.response_mask) for sample in samples)
    # Log-probabilities are 0.0 where the mask is 0, so the sum needs no mask.
    logprob = sum(sum(sample.response_logprobs) for sample in samples) / sampled if sampled else None
    versions = dict.fromkeys(turn.policy_version for turn in result.turns if turn.policy_version is not None)
    return [
        result.status,
        result.rollout_id,
        result.finish_reason,
        failure and failure.kind,
        failure and failure.category,
        message and message[:MAX_MESSAGE],
        result.alignment,
        sorted(result.drift),
        sum(result.drift.values()),
        result.warnings,
        result.num_llm_calls,
        result.num_tool_calls,
        len(samples),
        sampled,
        sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples),
        result.max_context_tokens,
        *(round(ms, 1) for ms in (spans.queued_ms, spans.tokenizer_ms, spans.llm_ms, spans.tools_ms, spans.total_ms)),
        result.attempt,
        result.worker,
        list(versions)[:MAX_VERSIONS],
        None if logprob is None else round(logprob, 5),
        [len(sample.response_ids) for sample in samples],
        result.reward,
        sum(not call.ok for turn in result.turns for call in turn.tools),
        spans.loop_ms,
        spans.redis_ms,
    ]
