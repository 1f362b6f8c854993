"""Says what an attempt says in the log, and in metrics: its start, its end, and its return to the queue.

A rollout that ends at its first attempt has one line: the start of a first attempt is said at level `debug`.
All lines of the attempt, those of its model calls and tools included, carry `rollout_uid`, `batch_id`, `attempt`,
`worker_id` and `trace_id`; from its first turn on also `turn`.
"""

import logging

from rolloutpool_common.composition import said_of
from rolloutpool_common.process.logs import bind_log, log_event
from rolloutpool_common.process.metrics import (
    CONTEXT_TOKENS,
    DURATION_SECONDS,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    ROLLOUT_TURNS,
    VERSION_LAG,
)
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.trace import trace_id_of
from rolloutpool_common.store import Claim
from rolloutpool_worker.ending import Action, Decision

_log = logging.getLogger(__name__)


def log_start(claim: Claim) -> None:
    """Binds the attempt to the lines of this task, and says that it begins."""
    bind_log(
        rollout_uid=claim.uid,
        batch_id=claim.batch_id,
        attempt=claim.attempt,
        worker_id=claim.worker_id,
        trace_id=trace_id_of(claim.uid),
    )
    # A later attempt did not wait since the rollout's acceptance.
    if claim.attempt == 1:
        QUEUE_SECONDS.observe(claim.queued_ms / 1000, claim.priority)
    # One line says of most rollouts all that there is to say, and that is the one of their end.
    level = logging.DEBUG if claim.attempt == 1 else logging.INFO
    log_event(_log, level, "rollout started", queued_ms=round(claim.queued_ms), replayed=claim.journal_length)


def log_end(result: RolloutResult, version_lag: int | None = None) -> None:
    """Says how the rollout ended."""
    spans = result.spans
    DURATION_SECONDS.observe(spans.total_ms / 1000, result.status)
    ROLLOUT_TURNS.observe(result.num_llm_calls)
    CONTEXT_TOKENS.observe(result.max_context_tokens)
    if version_lag is not None:
        VERSION_LAG.observe(version_lag)
    for phase, ms in (
        ("queue", spans.queued_ms),
        ("tokenizer", spans.tokenizer_ms),
        ("model", spans.llm_ms),
        ("tool", spans.tools_ms),
    ):
        PHASE_SECONDS.add(ms / 1000, phase)
    log_event(
        _log,
        logging.INFO,
        "rollout ended",
        status=result.status,
        reason=result.finish_reason,
        turns=result.num_llm_calls,
        failure=result.failure.category if result.failure else None,
        **said_of(result),
        queued_ms=round(spans.queued_ms),
        total_ms=round(spans.total_ms),
    )


def log_requeue(decision: Decision, why: str) -> None:
    """Says that the rollout went back to the queue, and why; deferrals go to `policy.waits`, once a minute."""
    level = logging.DEBUG if decision.action is Action.DEFER else logging.INFO
    log_event(_log, level, "rollout requeued", action=decision.action, delay_s=decision.delay_s, why=why)
