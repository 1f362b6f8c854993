"""What the policy cannot cause is retried, waits or is told by its name, and is never passed off as data."""

import asyncio

import pytest
from tests.support.batches import OWNER, new_batch, uids_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.redis_server import free_port
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Scripts, call, hang, say, status

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.policy.breaker import FAILURES, Breakers, waited_s

DEADLINE = 4.0


async def test_a_running_rollout_ends_at_its_deadline_with_the_turns_that_are_proved(
    inside: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    """In a model call that does not end; the other one had no turn to show."""
    add = call("add", '{"a": 5, "b": 3}')
    scripts: Scripts = {"one turn": [say("8", [add]), hang()], "nothing": [hang()]}
    async with scripted_trainer(tokenizer, scripts=scripts) as trainer:
        asks = [{"messages": [{"role": "user", "content": text}]} for text in ("one turn", "nothing")]
        batch = new_batch(asks, shared={"server_url": trainer.url}, deadline_s=DEADLINE)
        await inside.services.store.batches.submit(batch)
        uids = uids_of(batch)
        assert await asyncio.gather(*map(inside.take, uids)) == ["expired", "expired"]
        one, none = [await inside.result(uid) for uid in uids]
    for result in (one, none):
        assert (result.status, result.finish_reason) == (RolloutStatus.EXPIRED, FinishReason.DEADLINE)
        assert result.failure is None
        # Queue and run together have no more than it.
        assert result.spans.total_ms >= 0.5 * DEADLINE * 1000
    assert (one.num_llm_calls, one.num_tool_calls) == (1, 1)
    (sample,) = one.samples
    assert sum(sample.response_mask) == one.response_tokens > 0
    assert (none.num_llm_calls, none.samples) == (0, [])


async def test_a_result_that_contradicts_itself_is_kept_as_evidence_and_delivered_to_nobody(
    inside: InsideWorker, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TokenLedger.samples

    def damaged(ledger: TokenLedger) -> list[Sample]:
        return [sample.model_copy(update={"response_mask": sample.response_mask[:-1]}) for sample in whole(ledger)]

    monkeypatch.setattr(TokenLedger, "samples", damaged)
    async with scripted_trainer(tokenizer, say()) as trainer:
        (uid,) = await inside.submit({}, server_url=trainer.url)
        assert await inside.take(uid) == "failed"
        result = await inside.result(uid)
        evidence = RolloutResult.model_validate_json(await inside.services.store.rollouts.evidence(uid) or b"")
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.QUARANTINED)
    assert (result.samples, result.messages, result.alignment) == ([], [], None)
    assert "mask values" in result.failure.message
    (sample,) = evidence.samples
    assert len(sample.response_mask) == len(sample.response_ids) - 1
    assert (await inside.status(uid)).failures == {"infra:quarantined": 1}


async def test_an_infra_failure_goes_back_to_the_queue_so_often_and_is_told_then(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    scripts: Scripts = {"never": [status(503)], "recovers": [status(503), say("8")]}
    async with (
        inside_worker(redis_url, tokenizers, infra_retries=2, trainer_attempts=1) as worker,
        scripted_trainer(tokenizer, scripts=scripts) as trainer,
    ):
        asks = [{"messages": [{"role": "user", "content": text}]} for text in ("never", "recovers")]
        never, recovers = await worker.submit(*asks, server_url=trainer.url)
        assert [await worker.take(never) for _ in range(3)] == ["retried", "retried", "failed"]
        assert [await worker.take(recovers) for _ in range(2)] == ["retried", "completed"]
        failed, completed = await worker.result(never), await worker.result(recovers)
        totals = (await worker.services.store.totals.read()).totals
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.boundary) == (FailureKind.INFRA, Boundary.TRAINER)
    assert (failed.attempt, failed.samples) == (3, [])
    # Retries are no crashes, and what came of them is as if there had been none.
    assert (completed.attempt, completed.alignment, completed.num_llm_calls) == (2, "exact", 1)
    assert totals["requeued:retries"] == 3
    assert "requeued:crashes" not in totals


async def test_a_dead_port_costs_its_own_rollouts_time_and_the_others_nothing(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    now = 0.0
    dead = f"http://127.0.0.1:{free_port()}"
    async with (
        inside_worker(redis_url, tokenizers, infra_retries=0, trainer_attempts=1, trainer_down_timeout=2) as worker,
        scripted_trainer(tokenizer, say()) as trainer,
    ):
        worker.services.breakers = Breakers(lambda: now)
        *found_out, waiting = await worker.submit(*[{}] * (FAILURES + 1), server_url=dead)
        (healthy,) = await worker.submit({}, server_url=trainer.url)
        assert [await worker.take(uid) for uid in found_out] == ["failed"] * FAILURES
        assert await worker.take(waiting) == "deferred"
        assert await worker.take(healthy) == "completed"
        view = await worker.services.store.rollouts.view(waiting, OWNER)
        assert view is not None
        assert (view.status, view.turns) == (RolloutStatus.QUEUED, 0)
        # Asked once each time the port may be tried, deferred by all who come in between, given up in the end.
        assert await worker.take(waiting) == "deferred"
        assert await worker.take(waiting) == "failed"
        result = await worker.result(waiting)
        totals = (await worker.services.store.totals.read()).totals
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.NETWORK_ERROR)
    assert not result.failure.retryable
    assert waited_s(2) > 2 > waited_s(1)
    assert totals["requeued:deferrals"] == 2
