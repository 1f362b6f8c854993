"""kill -9: what the dead worker had goes on elsewhere, without a turn sampled twice and with the same tokens."""

from typing import Any

import pytest
import redis.asyncio
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.support.batches import OWNER
from tests.support.pool import Pool, opened_pool
from tests.support.waiting import until, until_true
from tests.support.worker_process import Worker, started_worker

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TURNS = 5


def endpoint(tokenizer: ChatTokenizer, latency: float) -> CallbackApp:
    return callback_app(ScriptedPolicy(tokenizer, latency=latency, turns=TURNS), tokenizer=tokenizer)


def silent(app: CallbackApp) -> ASGIApp:
    """The endpoint, which does not say that it is idempotent."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def hide(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0].lower() != b"x-idempotent-turns"]
            await send(message)

        await app(scope, receive, hide)

    return serve


def asks(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Named, because what the policy samples depends on a rollout's name."""
    return [
        {"rollout_id": f"r{i}", "messages": [{"role": "user", "content": text}], **fields}
        for i, text in enumerate(calculator_prompts(count))
    ]


async def kill_in_full_swing(pool: Pool, worker: Worker, uids: list[str]) -> None:
    """Kills it once each rollout has finished turns, and so is in a call."""

    async def swinging() -> bool:
        views = [await pool.store.rollouts.view(uid, OWNER) for uid in uids]
        return all(view is not None and view.turns >= 1 for view in views)

    await until(swinging)
    worker.kill()


async def all_in_calls(app: CallbackApp, count: int) -> None:
    """Returns when each rollout has finished turns and waits for another one."""

    async def waiting() -> bool:
        sessions = [app.sessions.named(f"r{i}") for i in range(count)]
        return all(s is not None and s.turns >= 1 and s.running is not None for s in sessions)

    await until(waiting)


async def test_a_killed_worker_s_rollouts_end_as_if_nothing_had_happened(
    redis_url: str, tokenizer: ChatTokenizer
) -> None:
    app, calm = endpoint(tokenizer, 0.15), endpoint(tokenizer, 0.0)
    async with opened_pool(redis_url) as pool:
        with serve_callback(app, [0]) as served, serve_callback(calm, [0]) as undisturbed:
            with started_worker(redis_url) as first:
                await first.announced(pool.store)
                # Nothing is declared: that the trainer may be asked again, it says itself.
                uids = await pool.submit(asks(12), shared={"server_url": served.url})
                await kill_in_full_swing(pool, first, uids)
            with started_worker(redis_url) as second:
                async with pool.reconciled():
                    results = [await pool.result(uid, 60) for uid in uids]
                await second.announced(pool.store)
                reference = await pool.run(asks(12), shared={"server_url": undisturbed.url})
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert {result.attempt for result in results} == {2}
    # By the trainer's own log: each turn of each rollout was sampled once.
    assert app.sampling_log.repeated() == {}
    assert len(app.sampling_log) == 12 * TURNS
    for result, same in zip(results, reference, strict=True):
        assert tokens(result) == tokens(same)
        session = app.get_session(result.rollout_id)
        assert session.response_ids == result.samples[0].response_ids
        assert session.response_mask == result.samples[0].response_mask
        assert result.num_tool_calls == same.num_tool_calls


def tokens(result: RolloutResult) -> list[dict[str, Any]]:
    return [sample.model_dump() for sample in result.samples]


async def test_a_turn_in_doubt_fails_where_asking_again_is_not_promised(
    redis_url: str, tokenizer: ChatTokenizer
) -> None:
    app = endpoint(tokenizer, 0.4)
    async with opened_pool(redis_url) as pool:
        with serve_callback(silent(app), [0]) as served:
            with started_worker(redis_url) as first:
                await first.announced(pool.store)
                uids = await pool.submit(asks(4), shared={"server_url": served.url})
                await all_in_calls(app, 4)
                first.kill()
            with started_worker(redis_url):
                async with pool.reconciled():
                    results = [await pool.result(uid, 60) for uid in uids]
    for result in results:
        assert result.status is RolloutStatus.FAILED
        failure = result.failure
        assert failure is not None
        assert (failure.kind, failure.boundary) == (FailureKind.INFRA, Boundary.TRAINER)
        assert (failure.category, failure.retryable) == (Category.AMBIGUOUS_TURN, False)
        # What was proved before is delivered, and nothing else.
        assert failure.turn == result.num_llm_calls + 1
        sampled = [record.token_ids for record in app.sampling_log.of(result.rollout_id)][: result.num_llm_calls]
        (sample,) = result.samples
        ones = [i for i, bit in zip(sample.response_ids, sample.response_mask, strict=True) if bit]
        assert ones == [token for ids in sampled for token in ids]
    assert app.sampling_log.repeated() == {}


async def test_suspects_that_get_further_alone_go_on_in_company(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """Else one at a time runs to its end, where machines died often, and the others wait for minutes."""
    app = endpoint(tokenizer, 0.0)
    async with opened_pool(redis_url) as pool, pool.reconciled():
        with serve_callback(app, [0]) as served:
            uids = await pool.submit(asks(2, idempotent=True), shared={"server_url": served.url})

            async def queued() -> bool:
                views = [await pool.store.rollouts.view(uid, OWNER) for uid in uids]
                return all(view is not None and view.status is RolloutStatus.QUEUED for view in views)

            for name in ("w1", "w2"):
                for uid in uids:
                    assert isinstance(await pool.store.rollouts.claim(uid, name), Claim)
                await pool.store.workers.report_end(name, ProcessEnd.of(-11))
                await until(queued)
            with started_worker(redis_url):
                results = [await pool.result(uid, 60) for uid in uids]
    assert {(result.status, result.attempt) for result in results} == {(RolloutStatus.COMPLETED, 4)}
    for result in results:
        assert [turn.attempt for turn in app.sampling_log.of(result.rollout_id)] == [3] + [4] * (TURNS - 1)


@pytest.mark.slow
async def test_a_drain_reaches_the_suspects_too(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """They are in a process of their own, which their worker waits for; nothing counts against them."""
    app = endpoint(tokenizer, 1.5)
    async with opened_pool(redis_url) as pool, pool.reconciled():
        with serve_callback(app, [0]) as served:
            uids = await pool.submit(asks(3, idempotent=True), shared={"server_url": served.url})
            for name in ("w1", "w2"):
                for uid in uids:
                    assert isinstance(await pool.store.rollouts.claim(uid, name), Claim)
                    await pool.store.reconciliation.take_back(uid, name)
                await pool.store.workers.leave(name)
            with started_worker(redis_url) as worker:
                # One worker, so all three are one cohort, and none of them has finished a turn.
                await until_true(
                    lambda: len([s for s in map(app.sessions.named, ("r0", "r1", "r2")) if s and s.running]) == 3, 60
                )
                worker.terminate()
                assert await worker.ended() == 0, worker.log()
            assert await pool.store.workers.known() == []
            with started_worker(redis_url):
                results = [await pool.result(uid, 60) for uid in uids]
    assert {(result.status, result.attempt) for result in results} == {(RolloutStatus.COMPLETED, 4)}
    assert app.sampling_log.repeated() == {}


async def test_a_full_redis_holds_rollouts_up_and_loses_none(redis_url: str, tokenizer: ChatTokenizer) -> None:
    app = endpoint(tokenizer, 0.05)
    async with opened_pool(redis_url) as pool, redis.asyncio.Redis.from_url(redis_url) as raw:
        with serve_callback(app, [0]) as served, started_worker(redis_url) as worker:
            await worker.announced(pool.store)
            uids = await pool.submit(asks(8), shared={"server_url": served.url})
            await until_true(lambda: len(app.sampling_log) >= 8)
            await raw.config_set("maxmemory", "1")
            try:
                await until_true(lambda: worker.log().count("rollout waits for the store") >= 8)
            finally:
                await raw.config_set("maxmemory", "0")
            results = [await pool.result(uid) for uid in uids]
    assert {(result.status, result.attempt) for result in results} == {(RolloutStatus.COMPLETED, 1)}
    assert app.sampling_log.repeated() == {}
