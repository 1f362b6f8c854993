"""Calls that would take gigabytes or minutes of a worker, end to end: what they cost, and what the policy reads."""

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.pool import Pool, opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say
from tests.support.worker_process import Worker, started_worker

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer


@pytest.fixture
async def pool(redis_url: str) -> AsyncIterator[Pool]:
    async with opened_pool(redis_url) as opened:
        yield opened


def peak_mb(worker: Worker) -> float:
    """The most memory that the worker has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{worker.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def cost(pool: Pool, redis_url: str, tokenizer: ChatTokenizer, asked: dict[str, Any], **spec: Any) -> Any:
    """Seconds and MB that a call costs a worker which has run a small one before, and the result."""

    async def run(one: dict[str, Any]) -> RolloutResult:
        async with scripted_trainer(tokenizer, say("calling", [one]), say()) as trainer:
            (uid,) = await pool.submit([spec], shared={"server_url": trainer.url})
            return await pool.result(uid, seconds=90)

    with started_worker(redis_url) as worker:
        await worker.announced(pool.store)
        await run(call("add", {"a": 1, "b": 2}))
        before, start = peak_mb(worker), time.perf_counter()
        result = await run(asked)
        return time.perf_counter() - start, peak_mb(worker) - before, result


@pytest.mark.parametrize(
    ("v1", "as_text"),
    [
        (True, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, False), (False, True), (True, False))),
    ],
)
@pytest.mark.slow
async def test_an_argument_of_10_mb(
    pool: Pool, redis_url: str, tokenizer: ChatTokenizer, v1: bool, as_text: bool
) -> None:
    given: Any = {"a": "x" * 10_000_000, "b": 1}
    if as_text:
        given = '{"a": "' + given["a"] + '", "b": 1}'
    seconds, mb, result = await cost(pool, redis_url, tokenizer, call("add", given), v1=v1)
    print(f"10 MB argument, v1={v1}, as_text={as_text}: {seconds:.1f} s, {mb:.0f} MB")
    assert result.failure is None, result.failure
    (read,) = [message.content for message in result.messages if message.role == "tool"]
    assert read == "Error: Invalid arguments for add: longer than 1048576 characters; not run"
    # It took more than 90 s and 1.7 to 2.8 GB. Since then it took 29 s at most, on a machine that did much else.
    assert seconds < 60
    assert mb < 400


async def test_a_list_that_would_be_repeated_a_million_times(
    pool: Pool, redis_url: str, tokenizer: ChatTokenizer
) -> None:
    asked = call("multiply", {"a": ["x" * 100], "b": 1_000_000})
    seconds, mb, result = await cost(pool, redis_url, tokenizer, asked, v1=True)
    print(f"multiply: {seconds:.1f} s, {mb:.0f} MB")
    assert [message.content for message in result.messages if message.role == "tool"] == [
        "Error: Tool execution failed"
    ]
    # It took 6 to 7 GB.
    assert seconds < 10
    assert mb < 30
