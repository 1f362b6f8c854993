"""A ticket: claim, run, finish. Whatever happens in between ends in exactly one of: result, release, nothing.

Nothing: the ticket was void (claimed elsewhere, ended, cancelled), or the claim was lost on the way; then whoever has
the rollout now answers for it. Release: this process shuts down, or Redis lost sight of it. Every other end is a
result, and every error on the way is attributed here, once.
"""

import asyncio
import logging
import time
from typing import Any, Literal

from rolloutpool_common.errors import (
    RequestFault,
    ResultQuarantined,
    RolloutError,
    TokenizerMismatch,
    TrainerUnreachable,
    WorkerFault,
)
from rolloutpool_common.outcomes import Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.process import failpoints
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.store import Claim, ClaimLost, ClaimRefused, StoreError
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import Drained
from rolloutpool_worker.policy import CallbackChannel, TrainerDown
from rolloutpool_worker.policy.breaker import OPEN_SECONDS
from rolloutpool_worker.rollout.admission import check_result
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.tools import TOOLS, ToolRunner

__all__ = ["run_rollout"]

_log = logging.getLogger(__name__)


async def run_rollout(services: Services, uid: str) -> str:
    """Runs the rollout if it may; returns what became of the ticket, in one word for Flower and the log."""
    with services.claims.claiming() as token:
        return await _run_claimed(services, uid, token)


async def _run_claimed(services: Services, uid: str, token: str) -> str:
    claim = await retry_store(
        services.drain, uid, lambda: services.store.rollouts.claim(uid, services.worker_id, token=token)
    )
    if isinstance(claim, ClaimRefused):
        return claim.reason
    services.more_waiting(claim)
    if not claim.clean and claim.spec.restartable and not claim.spec.may_repeat:
        claim = await services.store.rollouts.restart(claim)
    run = _Run(services, claim)
    try:
        with services.claims.running(claim, run.verify):
            async with asyncio.timeout(claim.deadline_in_s) as deadline:
                try:
                    result = await run.to_result()
                except asyncio.CancelledError:
                    if not deadline.expired():
                        raise
                    result = run.result(RolloutStatus.EXPIRED, FinishReason.DEADLINE)
        # The deadline bounds the rollout; storing its outcome is not to be cut short by it.
        if _is_retried(claim, result, services.settings.infra_retries):
            await _give_back(services, claim, "retries", clean=run.certain, delay_s=2.0**claim.retries)
            _log.info("rollout %s attempt %d is retried: %s", uid, claim.attempt, result.failure)
            return "retried"
        await retry_store(services.drain, uid, lambda: services.store.rollouts.finish(claim, result))
        failpoints.hit("worker.finish_before_ack")
    except ClaimLost:
        return "lost"
    except TrainerDown:
        await _give_back(services, claim, "deferrals", clean=run.certain, delay_s=OPEN_SECONDS)
        return "deferred"
    except Drained:
        await services.store.rollouts.release(claim, clean=run.certain)
        return "drained"
    except asyncio.CancelledError:
        if not services.drain.begun:
            # The API ended it (cancel, deadline) or another worker has it; its record is theirs.
            return "stopped"
        await services.store.rollouts.release(claim, clean=run.certain and not run.calling)
        return "drained"
    except StoreError as error:
        _log.error("rollout %s attempt %d: the store failed: %s", uid, claim.attempt, error.message)
        return "store"
    _log.info(
        "rollout %s ended: status=%s reason=%s attempt=%d turns=%d failure=%s",
        uid,
        result.status,
        result.finish_reason,
        claim.attempt,
        result.num_llm_calls,
        result.failure.category if result.failure else None,
    )
    return result.status.value


async def _give_back(
    services: Services, claim: Claim, counter: Literal["retries", "deferrals"], *, clean: bool, delay_s: float
) -> None:
    store = services.store
    await retry_store(
        services.drain,
        claim.uid,
        lambda: store.rollouts.give_back(claim, clean=clean, counter=counter, delay_s=delay_s),
    )


class _Run:
    """One attempt at one rollout."""

    def __init__(self, services: Services, claim: Claim) -> None:
        self._services = services
        self._claim = claim
        self._journal: Journal | None = None
        self._conversation: Conversation | None = None
        self._fingerprint: dict[str, str] = {}
        self._vocab_size = 0
        self._tokenizer_ms = 0.0
        self._start = time.perf_counter()

    @property
    def calling(self) -> bool:
        """Whether the trainer may be sampling for us right now."""
        return self._conversation is not None and self._conversation.calling

    @property
    def certain(self) -> bool:
        """Whether no earlier attempt can have left a model call behind."""
        return self._claim.clean if self._conversation is None else self._conversation.certain

    async def verify(self) -> None:
        """Makes sure that a Redis which was started again has the claim and its journal; raises `ClaimLost`."""
        if self._journal is not None:
            await self._journal.resend()
        elif not await self._services.store.rollouts.restore(self._claim, None, turns=0):
            raise ClaimLost

    async def to_result(self) -> RolloutResult:
        """The result of this attempt; `Drained`, `ClaimLost` and `StoreError` pass."""
        try:
            reason = await self._talk_patiently()
            result = self.result(RolloutStatus.COMPLETED, reason)
            self._admit(result)
            return result
        except ResultQuarantined as error:
            return await self._quarantine(error)
        except RolloutError as error:
            return self.result(RolloutStatus.FAILED, FinishReason.ERROR, error.failure(self._turn()))
        except (Drained, TrainerDown, StoreError):
            raise
        except Exception as error:
            # A plug-in's or our own mistake; it ends this rollout and no other.
            _log.exception("rollout %s: unexpected error", self._claim.uid)
            fault = WorkerFault(f"the worker failed with {type(error).__name__}; its log has the traceback")
            return self.result(RolloutStatus.FAILED, FinishReason.ERROR, fault.failure(self._turn()))

    async def _talk_patiently(self) -> FinishReason:
        """As `_talk`; a port that has been down for too long is a failure of its own."""
        try:
            return await self._talk()
        except TrainerDown as down:
            if self._claim.deferrals * OPEN_SECONDS < self._services.settings.trainer_down_timeout:
                raise
            raise TrainerUnreachable(down.message, retryable=False) from None

    async def _talk(self) -> FinishReason:
        claim, services, spec = self._claim, self._services, self._claim.spec
        agent = AGENTS.get(spec.agent)
        if agent is None:
            raise RequestFault(f"no agent {spec.agent!r} on this worker; it has {AGENTS.names()}")
        tokenizer = await services.tokenizers.get(spec.tokenizer_name, spec.tokenizer_revision)
        self._tokenizer_ms = (time.perf_counter() - self._start) * 1000
        self._fingerprint = tokenizer.fingerprint.model_dump()
        self._vocab_size = tokenizer.vocab_size
        _check_declared(spec, tokenizer.name, self._fingerprint)
        records = await self._read_journal() if claim.journal_length else []
        # A rollout that is isolated for its lifetime crash count (`crashes` is 0) stays isolated after one turn.
        # Any other suspect has made progress with its first record: it goes back to the queue from its next border.
        suspect = services.is_isolated and claim.crashes > 0
        after_write = services.drain.begin if suspect else None
        journal = self._journal = Journal(services.store, claim, records, services.drain, after_write=after_write)
        tools = {tool.name: tool for tool in TOOLS.values() if spec.tools is None or tool.name in spec.tools}
        settings = services.settings
        channel = CallbackChannel(
            services.transport,
            services.store.with_secrets(spec),
            uid=claim.uid,
            attempt=claim.attempt,
            attempts=settings.trainer_attempts,
            max_reply_bytes=int(settings.max_reply_mb * 1_000_000),
            pause=services.drain.pause,
            breakers=services.breakers,
        )
        shown = [tool.shown for tool in TOOLS.values()]
        tokens = TokenTrack(spec, tokenizer, shown, services.kinds.of(spec, claim.batch_id), claim.uid)
        self._conversation = Conversation(
            claim,
            journal=journal,
            channel=channel,
            tokens=tokens,
            tools=ToolRunner(tools, lenient=spec.v1, timeout=settings.tool_timeout),
            drain=services.drain,
        )
        try:
            return await agent(self._conversation)
        finally:
            services.kinds.learned(spec, claim.batch_id, tokens.kind)

    def _admit(self, result: RolloutResult) -> None:
        talk, spec = self._conversation, self._claim.spec
        if talk is not None:
            check_result(
                result, talk.tokens.ledger, vocab_size=self._vocab_size, allow_untrained=spec.allow_untrained or spec.v1
            )

    async def _quarantine(self, error: ResultQuarantined) -> RolloutResult:
        """The failure that stands for a contradictory result; the result itself is kept aside."""
        kept = self.result(RolloutStatus.FAILED, FinishReason.ERROR, error.failure(self._turn()))
        _log.error("rollout %s is quarantined: %s", self._claim.uid, error.message)
        store, drain = self._services.store, self._services.drain
        await retry_store(drain, self._claim.uid, lambda: store.rollouts.keep_evidence(self._claim, kept))
        return kept.model_copy(update={"samples": [], "messages": [], "alignment": None})

    async def _read_journal(self) -> list[dict[str, Any]]:
        uid, services = self._claim.uid, self._services
        return await retry_store(services.drain, uid, lambda: services.store.rollouts.read_journal(uid))

    def _turn(self) -> int | None:
        return None if self._conversation is None else self._conversation.turns + 1

    def result(self, status: RolloutStatus, reason: FinishReason, failure: Failure | None = None) -> RolloutResult:
        """The record of what has happened so far, under this outcome."""
        claim, spec, talk = self._claim, self._claim.spec, self._conversation
        known: dict[str, Any] = {}
        spans = Spans(
            queued_ms=claim.queued_ms,
            tokenizer_ms=self._tokenizer_ms,
            total_ms=(time.perf_counter() - self._start) * 1000,
        )
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
            status=status,
            finish_reason=reason,
            failure=failure,
            spans=spans,
            attempt=claim.attempt,
            worker=claim.worker_id,
            tokenizer=self._fingerprint,
            **known,
        )


def _is_retried(claim: Claim, result: RolloutResult, retries: int) -> bool:
    """Whether this failure goes back to the queue rather than to the trainer. Protocol v1 retries nothing."""
    failure = result.failure
    return (
        failure is not None
        and failure.kind is FailureKind.INFRA
        and failure.retryable
        and not claim.spec.v1
        and claim.retries < retries
    )


def _check_declared(spec: RolloutSpec, name: str, ours: dict[str, str]) -> None:
    """Raises `TokenizerMismatch` where the trainer declared another tokenizer than this worker loaded."""
    declared = {} if spec.declared_tokenizer is None else spec.declared_tokenizer.model_dump(exclude_none=True)
    known = {**ours, "revision": spec.tokenizer_revision}
    for what, theirs in declared.items():
        if known[what] != theirs:
            raise TokenizerMismatch(
                f"{what} of {name!r}: the trainer declared {theirs[:200]!r}, this worker has {known[what]!r}; give "
                "both the same files and versions"
            )
