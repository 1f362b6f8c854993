"""A worker's slots, when messages bring several rollouts: never more at once, and none idle behind a slow one."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.acceptance.conftest import TINY

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.generation import GenerateParams, Generation
from rolloutpool_trainer.serving import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

SLOTS = 16
SLOW = 8
"""One in so many: each message of eight would have one."""


class Uneven:
    """A policy that does not answer some rollouts before it is told to."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.release = threading.Event()
        self.now = self.most = 0
        self._policy = ScriptedPolicy(tokenizer)

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            # A moment, so that calls that are made together are counted together.
            await asyncio.sleep(0.02)
            if int(params.rollout_id.removeprefix("r")) % SLOW == 0:
                await asyncio.to_thread(self.release.wait)
            return await self._policy(prompt_ids, params)
        finally:
            self.now -= 1


@pytest.fixture
def small_pool() -> Iterator[LocalPool]:
    """One worker of few slots that takes messages of up to two rollouts."""
    with LocalPool(1, flower=False, tokenizers=[TINY], env={"ROLLOUTPOOL_WORKER_SLOTS": str(SLOTS)}) as pool:
        yield pool


def test_slow_rollouts_hold_their_own_slots_and_no_others(small_pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    rollouts = SLOW * (SLOTS // 2)
    policy = Uneven(tokenizer)
    prompts = calculator_prompts(rollouts)
    items = [{"rollout_id": f"r{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(prompts)]
    app = callback_app(policy, tokenizer=tokenizer, tools=small_pool.url)
    with serve_callback(app, [0]) as served, small_pool.client() as client:
        batch = client.submit(items, defaults={"tokenizer_name": TINY, "idempotent": True}, trainer=served.url)
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
