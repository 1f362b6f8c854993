"""`LocalPool` beyond one batch: it grows, does not block a loop, and a part that does not get on is named."""

import asyncio
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import (
    AsyncRolloutClient,
    LocalPool,
    PoolUnavailable,
)
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import ChildFailed
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts


def test_a_worker_that_is_added_in_the_middle_takes_its_share(tokenizer: ChatTokenizer) -> None:
    policy = ScriptedPolicy(tokenizer, latency=0.05)
    grown = threading.Event()

    async def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
        """The first worker is busy until the second one is there."""
        assert await asyncio.to_thread(grown.wait, 60)
        return await policy(prompt_ids, params)

    small = LocalPool(workers=1, flower=False, tokenizers=[TINY], env={"ROLLOUTPOOL_WORKER_SLOTS": "2"})
    with serve_callback(callback_app(generate, tokenizer=tokenizer), [0]) as served, small, small.client() as client:
        items = [{"messages": [{"role": "user", "content": question}]} for question in calculator_prompts(32)]
        batch = client.submit(items, defaults={"tokenizer_name": TINY}, trainer=served.url)
        first, second = small.workers[0].pid, small.add_worker().pid
        grown.set()
        shares = Counter(result.worker for result in batch.results())
        pids = {worker["worker_id"]: worker["pid"] for worker in client.workers()}
    taken = {pids[worker]: count for worker, count in shares.items()}
    assert sum(taken.values()) == 32
    assert taken[first] >= 8
    assert taken[second] >= 8


async def test_it_starts_and_stops_without_blocking_the_loop() -> None:
    async with LocalPool(workers=0, flower=False) as pool:
        url = pool.url
        async with pool.async_client() as client:
            assert (await client.health()).model_dump() == {"status": "healthy", "service": "rollout-server"}
    async with AsyncRolloutClient(url, timeout=0) as client:
        with pytest.raises(PoolUnavailable):
            await client.health()


@pytest.mark.slow
def test_a_worker_that_does_not_get_on_is_given_up_after_the_time_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "slow_plugin.py").write_text("import time\ntime.sleep(25)\n")
    env = {"PYTHONPATH": str(tmp_path), "ROLLOUTPOOL_PLUGINS": "slow_plugin"}
    # With the default of two minutes it would start.
    with pytest.raises(ChildFailed, match="worker-1"), LocalPool(workers=1, flower=False, ready_seconds=3, env=env):
        pass


def test_a_flower_that_does_not_get_on_ends_no_pool() -> None:
    with LocalPool(workers=0) as pool:
        flower = pool._flower_child
        assert flower is not None
        # Only from here on: an API on a slow machine may use more than this second of CPU until it is ready.
        pool._ready_seconds = 1
        flower.send(signal.SIGSTOP)
        try:
            assert not pool.wait_flower()
            with pool.client() as client:
                assert client.health().status == "healthy"
        finally:
            flower.send(signal.SIGCONT)
