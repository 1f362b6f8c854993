"""Ends rollouts through the store's own functions, as a worker does, for benchmarks of what follows.

No policy is asked and nothing is rendered, so that only reading is measured afterwards. Ids and log-probabilities are
random, so that they compress no better than a model's.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import orjson
from tests.support.batches import beat

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult, Sample, SampleSegment
from rolloutpool_common.rendering import TINY
from rolloutpool_common.security.api_keys import GUEST
from rolloutpool_common.store import Claim, NewBatch, NewRollout, Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.workers import BEAT_SECONDS

WORKER: Final = "benchmark"
"""The name under which rollouts are claimed."""
PROMPT = 400
"""Ids."""
AT_ONCE = 32
"""Rollouts that are ended at the same time; more would only wait for a connection."""
_UNREACHABLE = "http://127.0.0.1:9"


def sample_of(response: int, seed: int = 0) -> Sample:
    """Makes a training sequence with `response` sampled ids."""
    rng = random.Random(seed)
    return Sample(
        prompt_ids=[rng.randrange(32_000) for _ in range(PROMPT)],
        response_ids=[rng.randrange(32_000) for _ in range(response)],
        response_mask=[1] * response,
        response_logprobs=[round(-3 * rng.random(), 6) for _ in range(response)],
        segments=[SampleSegment(kind="sampled", start=0, n=response, turn=1)],
    )


async def accept(store: Store, count: int, *, asks: Mapping[str, object] | None = None) -> str:
    """Accepts a batch without publishing it, and returns its id."""
    spec = {"server_url": _UNREACHABLE, "tokenizer_name": TINY, "sampling_params": {}}
    item = orjson.dumps({"messages": [{"role": "user", "content": "What is 1 + 1?"}]})
    submitted = await store.batches.submit(
        NewBatch(
            batch_id=f"b{uuid.uuid4().hex}",
            owner=GUEST,
            shared=orjson.dumps(spec),
            rollouts=[NewRollout(rollout_id=None, overrides=item)] * count,
            asks=asks or {},
        )
    )
    return submitted.batch_id


@asynccontextmanager
async def present(store: Store) -> AsyncIterator[None]:
    """Registers a worker while the block runs, so that the pool takes no claim back from it."""

    async def beats() -> None:
        while True:
            await beat(store, WORKER, running=0, tokenizers={})
            await asyncio.sleep(BEAT_SECONDS)

    await store.workers.announce(WORKER, Announcement(host=WORKER, pid=0, slots=AT_ONCE))
    beating = asyncio.create_task(beats())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await store.workers.leave(WORKER)


async def claim(store: Store, batch_id: str, index: int = 0) -> Claim:
    """Claims one of the batch's rollouts, within `present`."""
    claimed = await store.rollouts.claim(f"{batch_id}-{index}", WORKER)
    if not isinstance(claimed, Claim):
        raise AssertionError(f"{batch_id}-{index} cannot be claimed: {claimed}")
    return claimed


async def finish(store: Store, claimed: Claim, sample: Sample) -> None:
    """Ends the rollout; the result is durable when this returns."""
    await store.rollouts.finish(claimed, _result(claimed, sample))


async def end(store: Store, batch_id: str, count: int, sample: Sample) -> None:
    """Claims and finishes every rollout of a batch, within `present`."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> None:
        async with free:
            await finish(store, await claim(store, batch_id, index), sample)

    await asyncio.gather(*map(one, range(count)))


def _result(claimed: Claim, sample: Sample) -> RolloutResult:
    return RolloutResult(
        uid=claimed.uid,
        rollout_id=claimed.spec.rollout_id,
        batch_id=claimed.batch_id,
        index=claimed.index,
        status=RolloutStatus.COMPLETED,
        finish_reason=FinishReason.STOP,
        samples=[sample],
        alignment=Alignment.EXACT,
        num_llm_calls=1,
        worker=WORKER,
    )
