"""A turn is asked with one body, whoever asks it: what an attempt wrote down, the next compares before it calls."""

from typing import Any

import orjson
import pytest
import redis.asyncio
from tests.support.inside_worker import inside_worker
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import call, say

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache

ASK = {"messages": [{"role": "user", "content": "Calculate 5 + 3"}]}
TURNS = (say(calls=[call("add", {"a": 5, "b": 3})]), say("8"))
TURN_AND_OBS = 2


async def drained_before_turn_2(redis_url: str, tokenizers: TokenizerCache, trainer: ScriptedTrainer) -> str:
    """The uid of a rollout whose first attempt ended behind its first observation."""
    async with inside_worker(redis_url, tokenizers) as first:
        first.stop_after(TURN_AND_OBS)
        (uid,) = await first.submit(ASK, server_url=trainer.url)
        assert await first.take(uid) == "drained"
        assert len(trainer.of(uid)) == 1
        return uid


async def set_temperature(redis_url: str, uid: str, value: float) -> None:
    """Makes workers write another body, as one with another version might."""
    key = f"rp:batch:{uid.rpartition('-')[0]}"
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        stored = await raw.hget(key, "shared")
        assert isinstance(stored, bytes)
        shared: dict[str, Any] = orjson.loads(stored)
        await raw.hset(key, "shared", orjson.dumps({**shared, "sampling_params": {"temperature": value}}))


@pytest.mark.parametrize("retries", [0, 3])
async def test_another_body_is_never_asked(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, retries: int
) -> None:
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        uid = await drained_before_turn_2(redis_url, tokenizers, trainer)
        await set_temperature(redis_url, uid, 0.25)
        async with inside_worker(redis_url, tokenizers, infra_retries=retries) as second:
            outcome = await second.take(uid)
            assert len(trainer.of(uid)) == 1
            if retries:
                # Back in the queue, for a worker that writes what was written before.
                assert outcome == "retried"
                await set_temperature(redis_url, uid, 1.0)
                assert await second.take(uid) == "completed"
                assert len(trainer.of(uid)) == 2
                return
            result = await second.result(uid)
    assert result.status is RolloutStatus.FAILED
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.boundary) == (FailureKind.INFRA, Boundary.WORKER)
    assert (failure.category, failure.turn) == (Category.REQUEST_CHANGED, 2)
    # The turn that was proved before is delivered.
    assert result.num_llm_calls == 1
    assert sum(result.samples[0].response_mask) == result.response_tokens
