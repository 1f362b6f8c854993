"""Whole rollouts over an engine: every sample exact, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.engine_channels import BOTH
from tests.support.imitated_engine import ImitatedEngine, Refusal, logprob_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.sglang_server import sglang_server
from tests.support.trainer_script import ADD, ADD_COMPACT
from tests.support.vllm_server import vllm_server
from tests.support.waiting import until_true

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store

ANSWER = "It is 38."
MESSAGES = [{"role": "user", "content": "Calculate 15 + 23"}]


@pytest.fixture
async def worker(fake_redis: str, tokenizers: TokenizerCache) -> AsyncIterator[InsideWorker]:
    async with inside_worker(fake_redis, tokenizers, infra_retries=0, trainer_attempts=2) as made:
        yield made


async def run(worker: InsideWorker, engine: ImitatedEngine, protocol: str, **options: Any) -> RolloutResult:
    return await worker.run_one(server_url=engine.url, protocol=protocol, messages=MESSAGES, **options)


def check_exact(result: RolloutResult, engine: ImitatedEngine, *turns: int) -> None:
    """Holds a result against what the engine has said: each sampled id once, with its log-probability."""
    (sample,) = result.samples
    said = [token for turn in turns for token in engine.ids_of(turn)]
    trained = [
        (token, logprob)
        for token, mask, logprob in zip(
            sample.response_ids, sample.response_mask, sample.response_logprobs, strict=True
        )
        if mask
    ]
    assert trained == [(token, logprob_of(token)) for token in said]
    # What the engine was asked with is what the sample says, from its first id to its last.
    whole = [*sample.prompt_ids, *sample.response_ids]
    for asked in engine.asked:
        if asked.status == 200:
            ids = asked.document.get("token_ids") or asked.document.get("input_ids") or asked.document["prompt"]
            assert ids == whole[: len(ids)]
    assert result.alignment is Alignment.EXACT


@BOTH
async def test_a_rollout_over_a_weight_update_with_aborts(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD, ANSWER) as engine:
        engine.version = "12"
        engine.abort_after(5, 0, 2)

        async def update(asked: Any) -> None:
            engine.version = str(11 + len(engine.asked))

        engine.before = update
        result = await run(worker, engine, protocol)
    check_exact(result, engine, 1, 2)
    spans = [(s.policy_version, s.n) for s in result.samples[0].segments if s.kind == "sampled"]
    first, second = (len(engine.ids_of(turn)) for turn in (1, 2))
    assert spans == [("12", 5), ("14", 2), ("15", first - 7), ("16", second)]
    assert (result.samples[0].version_min, result.samples[0].version_max) == (12, 16)
    assert [turn.aborts for turn in result.turns] == [3, 0]
    assert [turn.policy_version for turn in result.turns] == ["15", "16"]
    # The salt is that of the rollout's first id, on all calls.
    assert set(engine.salts) == {"12"}


@BOTH
async def test_each_worker_goes_on_from_the_journal(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD_COMPACT, ADD, ANSWER) as engine:
        engine.abort_after(4)
        result = await worker.run_in_pieces(server_url=engine.url, protocol=protocol, messages=MESSAGES)
    assert result.status is RolloutStatus.COMPLETED
    assert result.attempt == 5
    check_exact(result, engine, 1, 2, 3)
    assert not any(turn.resampled for turn in result.turns)


@BOTH
async def test_a_turn_that_was_in_flight_at_a_crash_is_sampled_again(
    fake_redis: str,
    worker: InsideWorker,
    store: Store,
    tokenizers: TokenizerCache,
    tokenizer: ChatTokenizer,
    protocol: str,
    server: Any,
) -> None:
    async with server(tokenizer, ADD, ANSWER) as engine:
        hold = asyncio.Event()

        async def hang(asked: Any) -> None:
            if not hold.is_set():
                await asyncio.Event().wait()

        engine.before = hang
        (uid,) = await worker.submit(server_url=engine.url, protocol=protocol, messages=MESSAGES)
        ticket = asyncio.create_task(worker.take(uid))
        await until_true(lambda: engine.asked)
        # As a drain that has no more time: cut off in the middle of a call.
        worker.services.drain.begin()
        (running,) = worker.services.claims.current()
        running.task.cancel()
        assert await ticket == "drained"
        hold.set()
        async with inside_worker(fake_redis, tokenizers) as second:
            assert await second.take(uid) == "completed"
            result = await second.result(uid)
    check_exact(result, engine, 1, 2)
    assert [turn.resampled for turn in result.turns] == [True, False]
    assert "turn_resampled" in result.warnings


BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": }\n</tool_call>'


@BOTH
async def test_a_broken_call_is_told_to_the_policy(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, BROKEN, ADD, ANSWER) as engine:
        result = await run(worker, engine, protocol)
    check_exact(result, engine, 1, 2, 3)
    told = result.messages[2]
    assert told.role == "tool"
    assert isinstance(told.content, str)
    assert told.content.startswith("Error: Invalid tool call, not run: it is not JSON")
    assert [tool.ok for turn in result.turns for tool in turn.tools] == [False, True]


@BOTH
async def test_a_prompt_that_is_too_long_is_the_requests_fault(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ANSWER) as engine:
        engine.context = 10
        result = await run(worker, engine, protocol)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.REQUEST
    assert engine.asked == []


@BOTH
async def test_what_the_engine_refuses_is_reported(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD, ANSWER) as engine:

        async def refuse(asked: Any) -> None:
            if len(engine.asked) == 2:
                raise Refusal(400, {"error": {"message": "unknown field", "type": "BadRequestError"}})

        engine.before = refuse
        result = await run(worker, engine, protocol)
    assert result.failure is not None
    assert (result.failure.category, result.failure.turn) == (Category.TRAINER_CLIENT_ERROR, 2)
    assert "unknown field" in result.failure.message
    # The turn before it stands.
    assert result.samples[0].response_ids == engine.ids_of(1)


@pytest.mark.parametrize(
    ("protocol", "server", "options", "warned"),
    [
        ("vllm", vllm_server, {"sampling_params": {"temperature": 0.7}}, True),
        ("vllm", vllm_server, {"sampling_params": {"top_k": 5}}, True),
        ("vllm", vllm_server, {"sampling_params": {"top_p": 0.9}, "logprobs_mode": "processed"}, False),
        ("vllm", vllm_server, {}, False),
        ("sglang", sglang_server, {"sampling_params": {"temperature": 0.7}}, False),
        ("sglang", sglang_server, {"sampling_params": {"temperature": 0.7}, "logprobs_mode": "raw"}, True),
        # It narrows what it samples from, and not what it reports (`make test-sglang`).
        ("sglang", sglang_server, {"sampling_params": {"top_p": 0.9}}, True),
        ("sglang", sglang_server, {"sampling_params": {"top_k": 5}, "logprobs_mode": "processed"}, True),
    ],
)
async def test_raw_log_probabilities_of_a_shaped_distribution_are_a_warning(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any, options: dict[str, Any], warned: bool
) -> None:
    async with server(tokenizer, ANSWER) as engine:
        result = await run(worker, engine, protocol, **options)
    assert ("raw_logprobs" in result.warnings) is warned


async def test_a_template_whose_calls_are_unknown_is_refused_before_anything_is_sampled(
    worker: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, ANSWER) as engine:
        result = await run(worker, engine, "vllm", response_template="nobody's")
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == (FailureKind.REQUEST, Category.TEMPLATE_REFUSED)
    assert engine.asked == []
