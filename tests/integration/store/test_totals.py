"""Totals count each thing once, whoever asks how often, and outlive what they count."""

import redis.asyncio
from tests.support.batches import (
    announce,
    claim,
    declare_dead,
    finish,
    result_of,
    status_of,
    submit,
)

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store

FAILURE = Failure(
    kind=FailureKind.INFRA,
    boundary=Boundary.TRAINER,
    category=Category.NETWORK_ERROR,
    message="no answer",
    retryable=True,
)


async def test_every_way_to_end_is_counted_with_what_it_brought(store: Store) -> None:
    done, failed, cancelled = await submit(store, 3)
    await finish(store, done, drift={"glue_rewritten": 2}, warnings=["zero_logprobs"])
    second = await claim(store, failed)
    end = {"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR, "failure": FAILURE, "alignment": None}
    await store.rollouts.finish(second, result_of(second, **end))
    await store.rollouts.cancel(cancelled)
    assert (await store.totals.read()).totals == {
        "batches": 1,
        "accepted": 3,
        "status:completed": 1,
        "status:failed": 1,
        "status:cancelled": 1,
        "failure:infra:network_error": 1,
        "alignment:exact": 1,
        "drift:glue_rewritten": 2,
        "warning:zero_logprobs": 1,
        "turns": 2,
        "sampled": 4,
        "tokens": 10,
    }
    status = await status_of(store, done)
    assert status.failures == {"infra:network_error": 1}


async def test_going_back_to_the_queue_is_counted_by_reason(store: Store, raw: redis.asyncio.Redis) -> None:
    uids = await submit(store, 2)
    drained, retried = [await claim(store, uid) for uid in uids]
    assert (await store.totals.read()).open == 2
    await store.rollouts.release(drained, clean=True)
    await store.rollouts.give_back(retried, clean=True, counter="retries", delay_s=60)
    assert not await store.rollouts.release(drained, clean=True)
    standing = await store.totals.read()
    assert {name: n for name, n in standing.totals.items() if ":" in name} == {
        "requeued:drains": 1,
        "requeued:retries": 1,
    }
    assert (standing.delayed, standing.open) == (1, 2)


async def test_tickets_that_nobody_takes_grow_old_and_are_put_back(store: Store, raw: redis.asyncio.Redis) -> None:
    (uid,) = await submit(store, priority=Priority.HIGH)
    await store.outbox.reserve(Priority.HIGH, 1)
    now, _ = await raw.time()
    await raw.zadd(f"rp:published:{Priority.HIGH}", {uid: (now - 90) * 1000})
    standing = await store.totals.read()
    assert 90 <= standing.oldest_ticket_s[Priority.HIGH] < 120
    assert standing.oldest_ticket_s[Priority.DEFAULT] == 0.0
    await store.outbox.lost(Priority.HIGH, now * 1000)
    standing = await store.totals.read()
    assert (standing.totals["republished"], standing.oldest_ticket_s[Priority.HIGH]) == (1, 0.0)


async def test_a_worker_is_lost_once(store: Store) -> None:
    await announce(store, "w")
    await declare_dead(store, "w")
    await store.workers.deregister("w")
    await declare_dead(store, "w")
    assert (await store.totals.read()).totals == {"workers_lost": 1}
