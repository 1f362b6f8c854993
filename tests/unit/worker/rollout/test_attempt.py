"""What becomes of a ticket, from the claim to what the store has of the rollout afterwards."""

import asyncio
import threading
import time
from functools import partial
from typing import Any

import pytest
from tests.support.batches import OWNER, claim, new_batch, status_of, uids_of, view_of
from tests.support.imitated_engine import Refusal
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, hang, say, status
from tests.support.vllm_server import vllm_server
from tests.support.waiting import until, until_true

from rolloutpool_common.outcomes import Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation import off_loop
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.rollout import attempt, deferral
from rolloutpool_worker.rollout.admission import check_result
from rolloutpool_worker.rollout.outcome import make_result
from rolloutpool_worker.tools import TOOLS, Tool, ToolContext
from rolloutpool_worker.tools.calculator import add


async def state_of(store: Store, uid: str) -> tuple[RolloutStatus, int]:
    """Status and attempts so far."""
    view = await view_of(store, uid)
    return view.status, view.attempt


async def test_a_rollout_that_ended_in_time_has_completed_although_its_result_is_made_after_the_deadline(
    inside: InsideWorker, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 2.0
    passed = time.monotonic() + seconds + 0.2

    def check_late(*args: Any, **named: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(max(0.0, passed - time.monotonic()))
        check_result(*args, **named)

    monkeypatch.setattr(attempt, "check_result", check_late)
    # What is long is made in a thread, where the deadline could interrupt the wait for it.
    monkeypatch.setattr(off_loop, "OFF_LOOP", -1)
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        batch = new_batch(1, shared={"server_url": trainer.url}, deadline_s=seconds)
        await inside.services.store.batches.submit(batch)
        (uid,) = uids_of(batch)
        assert await inside.take(uid) == "completed"
        result = await inside.result(uid)
    assert time.monotonic() > passed
    assert (result.status, result.alignment, len(result.samples)) == (RolloutStatus.COMPLETED, "exact", 1)


@pytest.mark.parametrize(("script", "outcome"), [([hang()], "expired"), ([status(400)], "failed")])
async def test_the_result_of_a_rollout_that_did_not_complete_is_made_in_a_thread_too(
    inside: InsideWorker,
    tokenizer: ChatTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    script: list[Step],
    outcome: str,
) -> None:
    threads = []

    def make(*args: Any, **named: Any) -> RolloutResult:
        threads.append(threading.current_thread())
        return make_result(*args, **named)

    monkeypatch.setattr(attempt, "make_result", make)
    monkeypatch.setattr(off_loop, "OFF_LOOP", -1)
    answers = say(calls=[call("add", {"a": 5, "b": 3})])
    async with scripted_trainer(tokenizer, answers, *script) as trainer:
        batch = new_batch(1, shared={"server_url": trainer.url}, deadline_s=3.0)
        await inside.services.store.batches.submit(batch)
        (uid,) = uids_of(batch)
        assert await inside.take(uid) == outcome
        result = await inside.result(uid)
        # What was proved before is delivered.
        assert len(result.samples) == 1
        assert (result.finish_reason is FinishReason.DEADLINE) is (outcome == "expired")
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("protocol", ["callback", "vllm"])
async def test_drains_do_not_renew_what_a_turn_may_cost(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, protocol: str
) -> None:
    """A turn that is never answered was asked for as long as workers were replaced."""
    settings = {"trainer_attempts": 3, "infra_retries": 0}
    async with scripted_trainer(tokenizer, status(500)) as trainer, vllm_server(tokenizer, "8") as engine:
        engine.refusals = [Refusal(500, {})] * 9
        url, asked = (trainer.url, trainer.exchanges) if protocol == "callback" else (engine.url, engine.asked)
        uid = ""

        async def were_made(calls: int) -> bool:
            return len(asked) == calls

        for number in (1, 2, 3):
            async with inside_worker(fake_redis, tokenizers, **settings) as worker:
                uid = uid or (await worker.submit(server_url=url, protocol=protocol))[0]
                ticket = asyncio.create_task(worker.take(uid))
                await until(partial(were_made, number))
                if number < 3:
                    worker.services.drain.begin()
                assert await ticket == ("drained" if number < 3 else "failed")
                if number == 3:
                    result = await worker.result(uid)
        assert len(asked) == 3
    assert result.failure is not None
    assert (result.attempt, result.failure.http_status) == (3, 500)


async def test_a_void_ticket_says_why(inside: InsideWorker, store: Store) -> None:
    ended, taken = await inside.submit({}, {})
    await store.rollouts.cancel(ended)
    await claim(store, taken, "another")
    assert [await inside.take(uid) for uid in (ended, taken, "b0-0")] == ["ended", "taken", "gone"]


async def test_a_bug_in_an_agent_ends_its_rollout_and_tells_no_details(inside: InsideWorker) -> None:
    @AGENTS.named("unit.buggy")
    async def buggy(conversation: Conversation) -> FinishReason:
        raise LookupError("a secret", conversation.turns)

    result = await inside.run_one(agent="unit.buggy")
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.INTERNAL_ERROR)
    assert "LookupError" in result.failure.message
    assert "secret" not in result.failure.message


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_an_agent_that_raises_what_ends_tasks_or_processes_ends_its_rollout_only(
    inside: InsideWorker, error: type[BaseException]
) -> None:
    @AGENTS.named(f"unit.{error.__name__}")
    async def leaves(conversation: Conversation) -> FinishReason:
        raise error

    result = await inside.run_one(agent=f"unit.{error.__name__}")
    assert result.failure is not None
    assert result.failure.category is Category.INTERNAL_ERROR
    assert error.__name__ in result.failure.message


async def refuse(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("defect", ["finish", "just after the claim"])
async def test_a_defect_that_leaves_no_result_leaves_no_claim_either(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    rollouts = inside.services.store.rollouts
    if defect == "finish":
        monkeypatch.setattr(rollouts, "finish", refuse)
    else:
        monkeypatch.setattr(inside.services, "more_waiting", lambda claim: 1 / 0)
    async with scripted_trainer(tokenizer, say()) as trainer:
        (uid,) = await inside.submit(server_url=trainer.url)
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            await inside.take(uid)
    assert await state_of(store, uid) == (RolloutStatus.QUEUED, 1)
    assert await store.workers.claims(inside.services.worker_id) == []


async def test_a_cancellation_that_nobody_asked_for_leaves_no_claim(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, hang()) as trainer:
        (uid,) = await inside.submit(server_url=trainer.url)
        ticket = asyncio.create_task(inside.take(uid))
        await until_true(lambda: trainer.of(uid))
        ticket.cancel()
        assert await ticket == "stopped"
    assert await state_of(store, uid) == (RolloutStatus.QUEUED, 1)


async def test_a_rollout_never_runs_with_fewer_tools_than_it_names(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_trainer(tokenizer, say()) as trainer:
        (uid,) = await inside.submit(server_url=trainer.url, tools=["add", "launch"])
        assert await inside.take(uid) == "deferred"
        assert trainer.exchanges == []
        view, state = await store.rollouts.view(uid, OWNER), await store.batches.status(uid.partition("-")[0], OWNER)
        assert view is not None
        assert state is not None
        assert (view.status, view.waiting) == (RolloutStatus.QUEUED, state.waiting[0])
        assert view.waiting is not None
        assert (view.waiting.waits_for, view.waiting.endpoint) == (WaitsFor.WORKER, None)
        assert "has no tool 'launch'; it has " in view.waiting.message
        # Another worker has it.
        monkeypatch.setattr(deferral, "own_offer", lambda: ["tool:launch"])
        monkeypatch.setattr(TOOLS, "get", lambda _: add)
        assert await inside.take(uid) == "completed"
        assert (await inside.result(uid)).status is RolloutStatus.COMPLETED


async def test_a_tool_that_fails_may_be_tried_again_from_its_turn(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    async def flaky(context: ToolContext) -> str:
        runs.append(context.idempotency_key)
        if len(runs) == 1:
            raise ConnectionError("no index")
        return "found"

    definition = ToolDefinition(function=ToolFunction(name="flaky"))
    monkeypatch.setitem(TOOLS._things, "flaky", Tool(definition, flaky))
    async with (
        inside_worker(fake_redis, tokenizers, infra_retries=1) as inside,
        scripted_trainer(tokenizer, say(calls=[call("flaky")]), say("done")) as trainer,
    ):
        # None of these turns is asked twice.
        (uid,) = await inside.submit({"server_url": trainer.url, "on_tool_error": "fail"})
        assert await inside.take(uid) == "retried"
        assert await inside.take(uid) == "completed"
        assert trainer.app.sampling_log.repeated() == {}
        result = await inside.result(uid)
    assert [message.content for message in result.messages if message.role == "tool"] == ["found"]
    assert (len(runs), len(set(runs)), result.warnings) == (2, 1, [])


async def test_a_journal_of_another_release_waits_for_a_worker_that_can_read_it(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say()) as trainer:
        (uid,) = await inside.submit({"server_url": trainer.url})
        await store.rollouts._redis.rpush(f"rp:rollout:{uid}:journal", b'{"kind": "snapshot", "v": 1}')
        assert await inside.take(uid) == "deferred"
        assert trainer.exchanges == []
    view = await view_of(store, uid)
    assert view.waiting is not None
    assert "cannot go on with it" in view.waiting.message
    assert "'snapshot'" in view.waiting.message


async def test_the_first_rollout_of_a_batch_says_that_its_prompt_shows_other_tools(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say()) as trainer:
        uids = await inside.submit({}, {}, server_url=trainer.url, tools=["add"])
        for uid in uids:
            await inside.take(uid)
        assert [(await inside.result(uid)).warnings for uid in uids] == [["tool_not_shown:add"], []]
        state = await status_of(store, uids[0])
        assert state.warnings == {"tool_not_shown:add": 1}
        # The same with a trainer that says nothing of tools, for a batch that does.
        assert (await inside.run_one(server_url=trainer.url)).warnings == []
        assert (await inside.run_one(server_url=trainer.url, tools=["add"], v1=True)).warnings == []
