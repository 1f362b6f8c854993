"""Turns are sampled together: as many as come, in their order, each with its own generation."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.support.endpoint_client import ANSWER, QUESTION, ask, body, client_of, error_of

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.batching import batched
from rolloutpool_trainer.endpoint.policy import BadGeneration, GenerateParams, Generation


def params(turn: int = 1) -> GenerateParams:
    return GenerateParams(
        rollout_id="r",
        turn=turn,
        messages=[],
        tools=None,
        temperature=1.0,
        top_p=1.0,
        max_tokens=8,
        stop=None,
        logprobs=True,
    )


class Echo:
    """Samples each prompt's own first id, and remembers the batches."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[list[int]]] = []
        self.seconds = seconds
        self.running, self.most_running = 0, 0

    async def __call__(self, prompts: list[list[int]], given: list[GenerateParams]) -> list[Generation]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        assert len(prompts) == len(given)
        self.batches.append(prompts)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return [
            Generation(token_ids=[prompt[0]], logprobs=[-1.0], policy_version=f"step-{prompt[0]}") for prompt in prompts
        ]


async def test_a_batch_has_at_most_so_many() -> None:
    echo = Echo(0.01)
    policy = batched(echo.__call__, most=4, wait=10.0)
    # The last two would wait for ten seconds, so they are joined by two more.
    tasks = [asyncio.create_task(policy([i], params())) for i in range(10)]
    await asyncio.wait(tasks[:8], timeout=5)
    tasks += [asyncio.create_task(policy([i], params())) for i in range(10, 12)]
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert [len(batch) for batch in echo.batches] == [4, 4, 4]
    assert echo.most_running == 1


async def test_a_turn_alone_waits_no_longer_than_it_must() -> None:
    policy = batched(Echo().__call__, most=64, wait=0.05)
    started = time.perf_counter()
    await policy([1], params())
    assert 0.04 < time.perf_counter() - started < 2.0


async def test_a_plain_function_runs_in_a_thread() -> None:
    threads: list[int] = []

    def many(prompts: list[list[int]], given: list[GenerateParams]) -> list[Generation]:
        threads.append(threading.get_ident())
        return [Generation(token_ids=[7], logprobs=[-0.5]) for _ in prompts]

    policy = batched(many, wait=0.0)
    assert (await policy([1], params())).token_ids == [7]
    assert threads != [threading.get_ident()]


async def test_a_failure_is_the_failure_of_its_batch_only() -> None:
    calls = 0

    async def many(prompts: list[list[int]], given: list[GenerateParams]) -> list[Generation]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("out of memory")
        return [Generation(token_ids=[1], logprobs=[-1.0])] * (len(prompts) + calls - 2)

    policy = batched(many, wait=0.0)
    for result in await asyncio.gather(policy([1], params()), policy([2], params()), return_exceptions=True):
        assert isinstance(result, RuntimeError)
    assert (await policy([3], params())).token_ids == [1]
    with pytest.raises(BadGeneration, match="2 generations for 1 prompts"):
        await policy([4], params())


async def test_a_turn_that_was_given_up_takes_no_place() -> None:
    echo = Echo()
    policy = batched(echo.__call__, wait=0.05)
    given_up = asyncio.create_task(policy([1], params()))
    kept = asyncio.create_task(policy([2], params()))
    await asyncio.sleep(0)
    given_up.cancel()
    await kept
    assert echo.batches == [[[2]]]


def test_a_policy_can_be_served_by_one_loop_after_another() -> None:
    policy = batched(Echo(10.0).__call__, wait=0.0)

    async def abandoned() -> None:
        await asyncio.wait_for(policy([1], params()), 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(abandoned())
    policy._generate_many = Echo().__call__
    assert asyncio.run(policy([2], params())).token_ids == [2]


@pytest.mark.parametrize(("most", "wait"), [(0, 0.0), (1, -1.0)])
def test_settings_that_cannot_be(most: int, wait: float) -> None:
    with pytest.raises(ValueError, match="at least"):
        batched(Echo().__call__, most=most, wait=wait)


async def test_an_endpoint_samples_in_batches(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode(ANSWER)
    sizes: list[int] = []

    def many(prompts: list[list[int]], given: list[GenerateParams]) -> list[Generation]:
        sizes.append(len(prompts))
        return [Generation(token_ids=ids, logprobs=[-1.0] * len(ids), policy_version="step-3") for _ in prompts]

    async with client_of(callback_app(batched(many), tokenizer=tokenizer)) as client:
        replies = await asyncio.gather(*(ask(client, body([QUESTION], rollout_id=str(i))) for i in range(20)))
    assert {reply.headers["X-Policy-Version"] for reply in replies} == {"step-3"}
    assert sum(sizes) == 20
    assert len(sizes) < 20


async def test_a_failed_batch_may_be_asked_again(tokenizer: ChatTokenizer) -> None:
    def many(prompts: list[list[int]], given: list[GenerateParams]) -> Any:
        raise RuntimeError("out of memory")

    async with client_of(callback_app(batched(many), tokenizer=tokenizer)) as client:
        assert error_of(await ask(client, body([QUESTION])), 500)["type"] == "generate_failed"
