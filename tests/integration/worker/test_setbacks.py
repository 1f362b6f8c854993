"""What the policy cannot cause is retried, waits or is told by its name, and is never passed off as data."""

import pytest
from tests.support.batches import view_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.ports import free_port
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.policy.breaker import FAILURES, Breakers, waited_s


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
        view = await view_of(worker.services.store, waiting)
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
