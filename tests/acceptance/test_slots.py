"""A worker's slots, when messages bring several rollouts: all are used, none twice, and no more is taken than fits."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis import Redis
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import TASK_NAME, make_celery, queue_name
from rolloutpool_common.queue.publisher import HEADER_PUBLISHED
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

DEFAULTS = {"tokenizer_name": TINY, "idempotent": True}
QUEUE = "rollouts:rollouts.default"
"""Celery's list of messages, in Redis."""
SLOTS = 16
SLOW = 8
"""One in so many: each message of eight would have one."""


class Uneven:
    """A policy that does not answer some rollouts before it is told to."""

    def __init__(self, tokenizer: ChatTokenizer, *, slow: int = SLOW) -> None:
        self._slow = slow
        self.release = threading.Event()
        self.now = self.most = 0
        self._policy = ScriptedPolicy(tokenizer)

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            # A moment, so that calls that are made together are counted together.
            await asyncio.sleep(0.02)
            if int(params.rollout_id.removeprefix("r")) % self._slow == 0:
                await asyncio.to_thread(self.release.wait)
            return await self._policy(prompt_ids, params)
        finally:
            self.now -= 1


def items(count: int) -> list[dict[str, Any]]:
    """Calculator rollouts, named r0 and so on."""
    prompts = calculator_prompts(count)
    return [{"rollout_id": f"r{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(prompts)]


@pytest.fixture(scope="module")
def small_pool() -> Iterator[LocalPool]:
    """One worker of few slots that takes messages of up to two rollouts."""
    with LocalPool(1, flower=False, tokenizers=[TINY], env={"ROLLOUTPOOL_WORKER_SLOTS": str(SLOTS)}) as pool:
        yield pool


def test_slow_rollouts_hold_their_own_slots_and_no_others(small_pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    rollouts = SLOW * (SLOTS // 2)
    policy = Uneven(tokenizer)
    app = callback_app(policy, tokenizer=tokenizer, tools=small_pool.url)
    with serve_callback(app, [0]) as served, small_pool.client() as client:
        batch = client.submit(items(rollouts), defaults=DEFAULTS, trainer=served.url)
        ended: set[str] = set()
        for result in batch.results():
            assert result.status is RolloutStatus.COMPLETED, result.failure
            ended.add(result.rollout_id)
            if len(ended) == rollouts - rollouts // SLOW:
                # All quick ones are through, although half of the slots are held.
                assert not any(int(name.removeprefix("r")) % SLOW == 0 for name in ended)
                policy.release.set()
    assert len(ended) == rollouts
    assert policy.most <= SLOTS


def test_a_full_worker_takes_no_further_message(small_pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    policy = Uneven(tokenizer, slow=1)
    app = callback_app(policy, tokenizer=tokenizer, tools=small_pool.url)
    with (
        serve_callback(app, [0]) as served,
        small_pool.client() as client,
        Redis.from_url(small_pool.redis_url) as redis,
    ):
        batch = client.submit(items(4 * SLOTS), defaults=DEFAULTS, trainer=served.url)
        eventually(lambda: policy.now == SLOTS, seconds=30)
        left = cast(int, redis.llen(QUEUE))
        policy.release.set()
        # Of two rollouts each.
        assert left == 3 * SLOTS // 2
        assert {result.status for result in batch.results()} == {RolloutStatus.COMPLETED}


@pytest.mark.slow
def test_a_message_of_more_than_there_are_slots_runs_bit_by_bit(tokenizer: ChatTokenizer) -> None:
    """As when a message was made while all workers were larger."""
    policy = Uneven(tokenizer)
    with (
        LocalPool(0, flower=False, tokenizers=[TINY], env={"ROLLOUTPOOL_WORKER_SLOTS": "2"}) as pool,
        pool.client() as client,
        Redis.from_url(pool.redis_url) as redis,
    ):
        # Nobody is there who could say which tools there are.
        app = callback_app(policy, tokenizer=tokenizer)
        with serve_callback(app, [0]) as served:
            batch = client.submit(items(8), defaults=DEFAULTS, trainer=served.url)
            eventually(lambda: redis.llen(QUEUE) == 8, seconds=10)
            redis.delete(QUEUE)
            celery = make_celery(pool.redis_url)
            refs = [[batch.batch_id, index] for index in range(8)]
            headers = {HEADER_PUBLISHED: time.time() * 1000}
            celery.send_task(TASK_NAME, args=(refs,), queue=queue_name(Priority.DEFAULT), headers=headers)
            celery.close()
            policy.release.set()
            pool.add_worker()
            assert {result.status for result in batch.results()} == {RolloutStatus.COMPLETED}
    assert policy.most == 2
