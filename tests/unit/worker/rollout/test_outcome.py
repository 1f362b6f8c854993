"""The record of an attempt."""

from tests.support.batches import claim, submit

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.store import Store
from rolloutpool_worker.rollout.outcome import AgentEnd, make_result


async def test_a_rollout_without_a_conversation_has_a_result_without_samples(store: Store) -> None:
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    outcome = AgentEnd(RolloutStatus.EXPIRED, FinishReason.DEADLINE)
    result = make_result(claimed, outcome, None, tokenizer={}, tokenizer_ms=1.0, total_ms=2.0)
    assert (result.uid, result.status, result.finish_reason) == (uid, RolloutStatus.EXPIRED, FinishReason.DEADLINE)
    assert (result.samples, result.messages, result.num_llm_calls) == ([], [], 0)
    assert (result.spans.tokenizer_ms, result.spans.total_ms) == (1.0, 2.0)
