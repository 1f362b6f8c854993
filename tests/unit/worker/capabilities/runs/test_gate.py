"""The gate before model calls, while a run is paused. `test_stale_rollouts` has what is too old."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.batches import OWNER, view_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.rollouts_of_a_run import ADD, RUN, submit_to_run
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say, status
from tests.support.vllm_server import vllm_server
from tests.support.waiting import until

from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.engines.engines import VERSION_SECONDS
from rolloutpool_worker.capabilities.runs import gate as run_gate
from rolloutpool_worker.capabilities.runs.gate import RunGates
from rolloutpool_worker.capabilities.runs.opened import OpenRuns


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_gate, "LOOK_SECONDS", 0.01)


def gates_of(inside: InsideWorker) -> RunGates:
    runs = inside.services.capabilities["runs"]
    assert isinstance(runs, OpenRuns)
    return runs.gates


def is_held(inside: InsideWorker) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return bool(gates_of(inside)._watches)

    return look


class TestPause:
    async def test_no_call_is_sent_until_the_run_is_resumed(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        paused_in_turn_1: list[Any] = []
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:

            async def pause(asked: Any) -> None:
                if not paused_in_turn_1:
                    paused_in_turn_1.append(await Runs(store).pause(OWNER, RUN, limit_s=60))

            engine.before = pause
            (uid,) = await submit_to_run(inside, engine.url, "vllm")
            ticket = asyncio.create_task(inside.take(uid))
            await until(is_held(inside))
            # The call in flight went on, and its tools ran.
            assert len(engine.asked) == 1
            await asyncio.sleep(0.05)
            assert len(engine.asked) == 1
            await Runs(store).resume(OWNER, RUN)
            assert await ticket == "completed"
        result = await inside.result(uid)
        assert (result.num_llm_calls, result.num_tool_calls, result.attempt) == (2, 1, 1)
        assert gates_of(inside)._watches == {}

    async def test_an_aborted_turn_waits_with_what_it_has(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # It would go back to the queue at once, and lose its ids.
        monkeypatch.setattr(run_gate, "HOLD_SECONDS", 0.02)
        async with vllm_server(tokenizer, "It is 8.") as engine:
            engine.version = "1"
            engine.abort_after(2)

            async def pause(asked: Any) -> None:
                if len(engine.asked) == 1:
                    await Runs(store).pause(OWNER, RUN, limit_s=60)

            engine.before = pause
            (uid,) = await submit_to_run(inside, engine.url, "vllm")
            ticket = asyncio.create_task(inside.take(uid))
            await until(is_held(inside))
            await asyncio.sleep(0.1)
            assert not ticket.done()
            engine.version = "2"
            await Runs(store).resume(OWNER, RUN)
            assert await ticket == "completed"
        (sample,) = (await inside.result(uid)).samples
        assert next((s.n, s.policy_version) for s in sample.segments if s.kind == "sampled") == (2, "1")
        assert (sample.version_min, sample.version_max) == (1, 2)

    async def test_a_long_pause_gives_the_slot_back_and_counts_no_failure(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_gate, "HOLD_SECONDS", 0.05)
        async with scripted_trainer(tokenizer, say("8")) as trainer:
            (uid,) = await submit_to_run(inside, trainer.url)
            runs, look = gates_of(inside)._runs, gates_of(inside)._runs.look
            # Paused between the claim and the first call.
            await Runs(store).pause(OWNER, RUN, limit_s=60)
            monkeypatch.setattr(runs, "look", look)
            assert await inside.take(uid) == "paused"
            await Runs(store).resume(OWNER, RUN)

            async def pause_first(key: str) -> Any:
                await Runs(store).pause(OWNER, RUN, limit_s=60)
                return await look(key)

            monkeypatch.setattr(runs, "look", pause_first)
            assert await inside.take(uid) == "deferred"
            assert trainer.posts == []
            view = await view_of(store, uid)
            assert view.status is RolloutStatus.QUEUED
            monkeypatch.setattr(runs, "look", look)
            await Runs(store).resume(OWNER, RUN)
            assert await inside.take(uid) == "completed"
        claimed = (await store.totals.read()).totals
        assert (claimed["requeued:pauses"], claimed.get("requeued:retries", 0)) == (1, 0)

    async def test_a_deadline_goes_on_and_says_what_it_waited_for(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:

            async def pause(asked: Any) -> None:
                await Runs(store).pause(OWNER, RUN, limit_s=60)

            engine.before = pause
            (uid,) = await submit_to_run(inside, engine.url, "vllm", deadline_s=1.5)
            assert await inside.take(uid) == "expired"
        result = await inside.result(uid)
        assert result.waited_for is not None
        assert result.waited_for.waits_for is WaitsFor.PAUSED
        # What was sampled until then is delivered.
        assert result.num_llm_calls == 1
        assert result.samples

    async def test_a_drain_ends_the_wait_at_once(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:

            async def pause(asked: Any) -> None:
                await Runs(store).pause(OWNER, RUN, limit_s=60)

            engine.before = pause
            (uid,) = await submit_to_run(inside, engine.url, "vllm")
            ticket = asyncio.create_task(inside.take(uid))
            await until(is_held(inside))
            inside.services.drain.begin()
            assert await asyncio.wait_for(ticket, 5) == "drained"

    async def test_repetitions_of_a_call_wait_too(
        self, fake_redis: str, tokenizers: TokenizerCache, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with (
            inside_worker(fake_redis, tokenizers, trainer_attempts=3) as worker,
            scripted_trainer(tokenizer, status(503, **{"Retry-After": "0"}), say("8")) as trainer,
        ):
            (uid,) = await submit_to_run(worker, trainer.url)
            seen: list[int] = []
            runs, look = gates_of(worker)._runs, gates_of(worker)._runs.look

            async def pause_second(key: str) -> Any:
                seen.append(len(trainer.posts))
                if len(seen) == 2:
                    await Runs(store).pause(OWNER, RUN, limit_s=60)
                return await look(key)

            runs.look = pause_second  # type: ignore[method-assign]
            ticket = asyncio.create_task(worker.take(uid))
            await until(is_held(worker))
            assert len(trainer.posts) == 1
            await Runs(store).resume(OWNER, RUN)
            assert await ticket == "completed"

    async def test_an_update_in_a_pause_is_seen_by_what_has_not_begun(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        runs = Runs(store)
        async with vllm_server(tokenizer, "It is 8.") as engine:
            engine.version = "12"
            await runs.announce(OWNER, RUN, 12)
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=0)
            gate_runs, look = gates_of(inside)._runs, gates_of(inside)._runs.look

            async def paused_at_the_first_look(key: str) -> Any:
                gate_runs.look = look  # type: ignore[method-assign]
                await runs.pause(OWNER, RUN, limit_s=60)
                return await look(key)

            gate_runs.look = paused_at_the_first_look  # type: ignore[method-assign]
            ticket = asyncio.create_task(inside.take(uid))
            await until(is_held(inside))
            engine.version = "13"
            await asyncio.sleep(VERSION_SECONDS)
            await runs.announce(OWNER, RUN, 13)
            await runs.resume(OWNER, RUN)
            assert await ticket == "completed"
        assert engine.salts == ["13"]
        assert (await inside.result(uid)).staleness == 0

    async def test_all_that_wait_share_one_look(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, "It is 8.") as engine:
            uids = await submit_to_run(inside, engine.url, "vllm", rollouts=20)
            runs, look, looks = gates_of(inside)._runs, gates_of(inside)._runs.look, 0

            async def counted(key: str) -> Any:
                nonlocal looks
                looks += 1
                if looks == 1:
                    await Runs(store).pause(OWNER, RUN, limit_s=60)
                return await look(key)

            runs.look = counted  # type: ignore[method-assign]
            first = asyncio.create_task(inside.take(uids[0]))
            await until(is_held(inside))
            await Runs(store).resume(OWNER, RUN)
            await first
            before = looks
            tickets = [asyncio.create_task(inside.take(uid)) for uid in uids[1:]]
            await asyncio.gather(*tickets)
            # One before each call and one at each end.
            assert looks - before == 2 * 19


async def test_a_rollout_without_a_run_reads_nothing(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    async def look(key: str) -> Any:
        raise AssertionError(key)

    gates_of(inside)._runs.look = look  # type: ignore[method-assign]
    async with vllm_server(tokenizer, "It is 8.") as engine:
        (uid,) = await submit_to_run(inside, engine.url, "vllm", run=None)
        assert await inside.take(uid) == "completed"
    assert (await inside.result(uid)).staleness is None
