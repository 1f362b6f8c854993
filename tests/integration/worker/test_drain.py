"""SIGTERM: calls in flight are awaited and journaled, rollouts go on elsewhere, no turn is sampled twice, exit 0."""

import asyncio
import json
import signal
from collections import Counter
from typing import Any

import pytest
from tests.support.batches import OWNER, view_of
from tests.support.pool import opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, hang, say, wait
from tests.support.waiting import until, until_true
from tests.support.worker_process import ROOT, Worker, started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts
from rolloutpool_worker.tools import TOOLS


async def test_a_drained_worker_s_rollouts_are_finished_by_another(redis_url: str, tokenizer: ChatTokenizer) -> None:
    tools = [tool.definition for tool in TOOLS.values()]
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.1, turns=6), tokenizer=tokenizer, tools=tools)
    asks = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(24)]
    async with opened_pool(redis_url) as pool:
        with serve_callback(app, [0]) as served, started_worker(redis_url) as first:
            drained = await first.announced(pool.store)
            # Not idempotent: one repeated or doubtful turn would show as a failure.
            uids = await pool.submit(asks, shared={"server_url": served.url})

            async def in_full_swing() -> bool:
                views = [await pool.store.rollouts.view(uid, OWNER) for uid in uids]
                return all(view is not None and view.turns >= 2 for view in views)

            await until(in_full_swing)
            first.terminate()
            assert await first.ended() == 0, first.log()
            assert await pool.store.workers.known() == []
            with started_worker(redis_url):
                async with pool.reconciled():
                    results = [await pool.result(uid) for uid in uids]
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert {result.alignment for result in results} == {"exact"}
    assert drained.worker_id not in {result.worker for result in results}
    assert Counter(result.attempt for result in results) == {2: 24}
    assert {result.num_llm_calls for result in results} == {6}
    assert app.sampling_log.repeated() == {}
    assert len(app.sampling_log) == 24 * 6
    for result in results:
        assert list(app.get_session(result.rollout_id).response_ids) == result.samples[0].response_ids
        assert list(app.get_session(result.rollout_id).response_mask) == result.samples[0].response_mask


async def test_a_call_in_flight_is_awaited_and_its_turn_is_kept(redis_url: str, tokenizer: ChatTokenizer) -> None:
    answer_now = asyncio.Event()
    script = (wait(answer_now), say("8", [call("add")]))
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, *script) as trainer:
        with started_worker(redis_url) as worker:
            await worker.announced(pool.store)
            (uid,) = await pool.submit(shared={"server_url": trainer.url})
            await until_true(lambda: len(trainer.exchanges) == 1)
            worker.terminate()
            await until_true(lambda: drain_of(worker) == 1)
            answer_now.set()
            assert await worker.ended() == 0, worker.log()
        view = await view_of(pool.store, uid)
        assert (view.status, view.turns, view.worker) == (RolloutStatus.QUEUED, 1, None)
        again = await pool.store.rollouts.claim(uid, "next")
        assert isinstance(again, Claim)
        assert (again.clean, again.crashes, again.attempt) == (True, 0, 2)
        (record,) = await pool.store.rollouts.read_journal(uid)
        assert record.kind == "turn"
        assert len(trainer.exchanges) == 1


async def test_a_signal_in_the_middle_of_the_start_is_heeded_at_its_end(redis_url: str) -> None:
    """Wherever it comes, nothing is left announced."""
    plugins = {"ROLLOUTPOOL_PLUGINS": "tests.support.interrupted_plugin"}
    async with opened_pool(redis_url) as pool:
        with started_worker(redis_url, [ROOT], **plugins) as worker:
            # It signals itself, between its announcement and whatever its start does next.
            assert await worker.ended() == 0, worker.log()
            assert events(worker)["worker started"]["slots"] == 32
            # The announcement follows Celery's readiness, so the signal finds a worker that drains.
            assert drain_of(worker) == 0
            assert "Traceback" not in worker.log()
        assert await pool.store.workers.known() == []


def events(worker: Worker) -> dict[str, dict[str, Any]]:
    """The last line of each event; each line is JSON."""
    lines = [json.loads(line) for line in worker.log().rpartition("\n")[0].splitlines()]
    return {line["event"]: line for line in lines}


def drain_of(worker: Worker) -> int | None:
    found = events(worker).get("drain begun")
    return None if found is None else int(found["rollouts"])


async def test_a_second_signal_waits_for_nothing(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """Neither for calls in flight nor for tools; what was in them goes on elsewhere, as after a crash."""
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, hang(), say("8")) as trainer:
        with started_worker(redis_url, ROLLOUTPOOL_DRAIN_SECONDS="600") as worker:
            await worker.announced(pool.store)
            uids = await pool.submit(4, shared={"server_url": trainer.url, "idempotent": True})
            await until_true(lambda: len(trainer.exchanges) == 4)
            worker.terminate()
            await until_true(lambda: drain_of(worker) == 4)
            assert worker.process.poll() is None
            worker.terminate()
            # A machine that needs ten seconds for the rest of the way out has it ended by the kernel.
            assert await worker.ended() in (0, -signal.SIGALRM), worker.log()
            assert "second SIGTERM" in events(worker)
            assert "Traceback" not in worker.log()
        # All given back by the worker itself: nobody has to find it dead first.
        for uid in uids:
            view = await view_of(pool.store, uid)
            assert (view.status, view.worker) == (RolloutStatus.QUEUED, None)
        with started_worker(redis_url):
            async with pool.reconciled():
                results = [await pool.result(uid) for uid in uids]
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert {result.attempt for result in results} == {2}
    # Asked again under the same key, which the trainer has promised to be safe.
    assert {len(trainer.of(uid)) for uid in uids} == {2}
    assert {request.turn for request in trainer.exchanges} == {1}


@pytest.mark.slow
async def test_a_second_signal_ends_a_worker_that_can_do_nothing(redis_url: str, tokenizer: ChatTokenizer) -> None:
    plugins = {"ROLLOUTPOOL_PLUGINS": "tests.support.plugins"}
    async with (
        opened_pool(redis_url) as pool,
        scripted_trainer(tokenizer, say("8", [call("block_the_loop")])) as trainer,
    ):
        with started_worker(redis_url, [ROOT], **plugins) as worker:
            await worker.announced(pool.store)
            (uid,) = await pool.submit(shared={"server_url": trainer.url})

            async def turned() -> bool:
                view = await pool.store.rollouts.view(uid, OWNER)
                return view is not None and view.turns == 1

            await until(turned)
            worker.terminate()
            # Two signals that nobody has seen yet would be one.
            await until_true(lambda: "Warm shutdown" in worker.log())
            worker.terminate()
            # Ended by the kernel: no code of the worker had to run for it.
            assert await worker.ended() == -signal.SIGALRM, worker.log()
