"""Groups, refills and streams through a Python client, the real API and a real Redis."""

import asyncio
from typing import Any

from tests.support.scripted_worker import ScriptedWorker, plain_result
from tests.support.waiting import until

from rolloutpool_common.capabilities.runs.claimed import ClaimedRun
from rolloutpool_common.capabilities.runs.wire import StaleEnd
from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.tokens.samples import Sample, SampleSegment
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_stream import AsyncRolloutStream

TRAINER = "http://127.0.0.1:8081"
DEFAULTS = {"tokenizer_name": "tiny"}
LOST = {
    "status": RolloutStatus.FAILED,
    "finish_reason": FinishReason.ERROR,
    "failure": Failure(
        kind=FailureKind.INFRA,
        boundary=Boundary.TRAINER,
        category=Category.NETWORK_ERROR,
        message="The trainer is gone.",
        retryable=False,
    ),
}


def sampled(version: str) -> dict[str, Any]:
    """Changes to a result: one sample of these weights."""
    segment = SampleSegment(kind="sampled", start=0, n=1, turn=1, policy_version=version)
    sample = Sample(prompt_ids=[1], response_ids=[2], response_mask=[1], response_logprobs=[-0.5], segments=[segment])
    return {"samples": [sample]}


def items(*groups: str) -> list[dict[str, Any]]:
    return [{"group": group, "n": 2, "messages": [{"role": "user", "content": group}]} for group in groups]


async def test_a_failed_sibling_is_run_again_next_to_the_rest(
    client: AsyncRolloutClient, worker: ScriptedWorker
) -> None:
    batch = await client.submit(items("a", "b"), defaults=DEFAULTS, trainer=TRAINER)
    assert batch.accepted is not None
    uids = batch.accepted.rollouts
    groups = batch.trainable_groups(min_usable=2, refill=1)
    await worker.end(uids[0], **sampled("step-1"))
    await worker.end(uids[1], **LOST)
    # Group "a" has ended and lacks one, so that one is submitted again while "b" still runs.
    first = asyncio.ensure_future(anext(groups))
    again = await until(lambda: _second_batch(client, batch.batch_id))
    for uid in uids[2:]:
        await worker.end(uid, **sampled("step-1"))
    assert (await first).group == "b"
    await worker.end(f"{again}-0", **sampled("step-2"))
    last = await anext(groups)
    assert (last.group, [rollout.uid for rollout in last.rollouts]) == ("a", [uids[0], f"{again}-0"])
    assert [group async for group in groups] == []
    summary = await batch.summary(policy_version="step-3")
    assert (summary["groups/usable"], summary["groups/refills"], summary["staleness/max"]) == (2, 1, 2)


async def _second_batch(client: AsyncRolloutClient, first: str) -> str | None:
    return next((found.batch_id for found in await client.batches() if found.batch_id != first), None)


async def test_a_stream_tells_the_pool_how_new_the_weights_are(
    client: AsyncRolloutClient, worker: ScriptedWorker
) -> None:
    stream = AsyncRolloutStream(
        client, [items("a", "b")], max_staleness=2, defaults=DEFAULTS, trainer=TRAINER, run="job", lease_seconds=600
    )
    stream.version = 7
    groups = aiter(stream)
    reading = asyncio.ensure_future(anext(groups))
    (summary,) = await until(lambda: client.batches(run="job"))
    assert (await client.run("job")).policy_version == 7
    held = [await worker.claim(f"{summary.batch_id}-{index}") for index in range(4)]
    assert {ClaimedRun.of(claim)[1:3] for claim in held} == {(2, "drop")}
    dropped = {"status": RolloutStatus.CANCELLED, "finish_reason": FinishReason.STALE, "stale": StaleEnd.DROPPED}
    for claim, changes in zip(held, (sampled("7"), sampled("7"), sampled("7"), dropped), strict=True):
        await worker.store.rollouts.finish(claim, plain_result(claim, **changes))
    assert [rollout.index for rollout in (await reading).rollouts] == [0, 1]
    stream.version = 8
    assert [rollout.index for rollout in (await anext(groups)).rollouts] == [2]
    assert (await client.run("job")).policy_version == 8
    assert [group async for group in groups] == []
    assert stream.dropped == {"stale": 1}
    assert (await client.batch(summary.batch_id).status()).stale == {"dropped": 1}
