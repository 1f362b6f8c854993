"""Redis dies and comes back without its last writes, under a live worker and a client that reads by cursor."""

import asyncio
from collections import Counter

from tests.support.durable_redis import durable_redis
from tests.support.inside_api import running_api
from tests.support.waiting import until
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Store
from rolloutpool_trainer import AsyncBatch, AsyncRolloutClient, GenerateParams, Generation, RolloutClient
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

ROLLOUTS, SLOTS, TURNS = 24, 4, 5
SECONDS = 90.0
# So many turns are sampled until the mark and until the loss. Of a rollout that runs then, at most four.
UNTIL_MARK, UNTIL_LOSS = 26, 66


class Latch:
    """A policy that stands still after so many turns, until more are allowed."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self.allowed = 0
        self.waiting = 0
        self._policy = policy

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.waiting += 1
        while not self.allowed:  # noqa: ASYNC110  who opens it is in another thread
            await asyncio.sleep(0.01)
        self.allowed -= 1
        self.waiting -= 1
        return await self._policy(prompt_ids, params)


async def test_everything_ends_once_and_is_read_once(tokenizer: ChatTokenizer) -> None:
    latch = Latch(ScriptedPolicy(tokenizer, turns=TURNS))
    policy = callback_app(latch, tokenizer=tokenizer)
    read: list[FinishedRollout] = []

    async def stands(turns: int) -> None:
        """Returns when so many turns were sampled, all slots wait for the next, and the client has read all ends."""

        async def look() -> bool:
            sampled = Counter(turn.rollout_id for turn in policy.sampling_log)
            ended = sum(count == TURNS for count in sampled.values())
            return sampled.total() == turns and latch.waiting == SLOTS and len(read) == ended

        await until(look, SECONDS)

    async def reading(batch: AsyncBatch) -> None:
        async for result in batch.results():
            read.append(result)  # noqa: PERF401  others look at it meanwhile

    with durable_redis() as server, serve_callback(policy, [0]) as trainer:
        async with running_api(server.url) as api, AsyncRolloutClient(api.url) as client:
            with started_worker(server.url, ROLLOUTPOOL_WORKER_SLOTS=str(SLOTS)) as worker:
                store = Store.open(server.url)
                await worker.announced(store)
                batch = await client.submit(
                    [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(ROLLOUTS)],
                    defaults={"tokenizer_name": "rolloutpool/tiny", "idempotent": True},
                    trainer=trainer.url,
                )
                reader = asyncio.create_task(reading(batch))
                latch.allowed = UNTIL_MARK
                await stands(UNTIL_MARK)
                before = len(read)
                server.mark()
                latch.allowed = UNTIL_LOSS - UNTIL_MARK
                await stands(UNTIL_LOSS)
                assert len(read) >= before + SLOTS
                await asyncio.to_thread(server.lose_tail)
                latch.allowed = ROLLOUTS * TURNS
                await asyncio.wait_for(reader, SECONDS)
                log = worker.log()
            status = await batch.status()
            with RolloutClient(api.url) as blocking:
                again = await asyncio.to_thread(lambda: list(blocking.batch(batch.batch_id).results(read[0].cursor)))
            await store.close()
    assert batch.accepted is not None
    assert Counter(result.uid for result in read) == Counter(batch.accepted.rollouts)
    assert {result.status for result in read} == {RolloutStatus.COMPLETED}
    assert status.counts == {**dict.fromkeys(RolloutStatus, 0), RolloutStatus.COMPLETED: ROLLOUTS}
    # Ends were lost, and a cursor from before it happened leaves nothing out.
    assert "Redis forgot how it ended here" in log
    assert Counter(result.uid for result in again) == Counter(batch.accepted.rollouts)
    # By the trainer's own count each turn was sampled once, and what the client got is what was sampled.
    assert policy.sampling_log.repeated() == {}
    assert len(policy.sampling_log) == ROLLOUTS * TURNS
    for result in [*read, *again]:
        assert result.samples[0].response_ids == policy.get_session(result.rollout_id).response_ids
        assert result.samples[0].response_mask == policy.get_session(result.rollout_id).response_mask
