"""A turn is asked with one body, whoever asks it: what an attempt wrote down, the next compares before it calls."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import redis.asyncio
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import call, say

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.journal import EditRecord, JournalRecord, ObservationRecord, TurnRecord
from rolloutpool_common.protocol.turn_headers import HEADER_DIGEST
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


async def test_the_observation_carries_the_digest_that_the_trainer_gets(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        uid = await drained_before_turn_2(redis_url, tokenizers, trainer)
        async with inside_worker(redis_url, tokenizers) as second:
            turn, obs = await second.services.store.rollouts.read_journal(uid)
            assert await second.take(uid) == "completed"
        asked = trainer.of(uid)[1]
    assert isinstance(turn, TurnRecord)
    assert isinstance(obs, ObservationRecord)
    assert obs.planned.digest == asked.header(HEADER_DIGEST.lower())
    assert obs.planned.digest == hashlib.blake2b(asked.content, digest_size=16).hexdigest()


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


async def test_an_edited_history_has_a_digest_too(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    steps: list[dict[str, Any]] = [{"sample": {}}, {"edit": ASK["messages"]}, {"sample": {}}]
    async with scripted_trainer(tokenizer, say("once"), say("twice")) as trainer:
        journals: list[list[JournalRecord]] = []
        rollouts = inside.services.store.rollouts
        journal = rollouts.journal

        async def seen(claim: Any, records: Sequence[JournalRecord], *, turns: int) -> None:
            journals.append(list(records))
            await journal(claim, records, turns=turns)

        setattr(rollouts, "journal", seen)  # noqa: B010  a method, to mypy
        (uid,) = await inside.submit(
            {**ASK, "agent": "tests.replay", "metadata": {"steps": steps}}, server_url=trainer.url
        )
        await inside.take(uid)
        asked = trainer.of(uid)[1]
    edit = journals[-1][1]
    assert isinstance(edit, EditRecord)
    assert edit.planned.edited
    assert edit.planned.digest == asked.header(HEADER_DIGEST.lower())
