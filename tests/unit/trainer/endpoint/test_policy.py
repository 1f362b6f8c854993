"""A policy may be plain or async; what it returns is checked before anybody trains on it."""

import threading
from typing import Any

import pytest

from rolloutpool_trainer.endpoint.policy import BadGeneration, GenerateParams, Generation, sample

PARAMS = GenerateParams(
    rollout_id="r",
    turn=1,
    messages=[{"role": "user", "content": "x"}],
    tools=None,
    temperature=1.0,
    top_p=1.0,
    max_tokens=8,
    stop=None,
    logprobs=True,
)


class Scalar:
    """As tensor libraries have them: an index and a float, but neither int nor float."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __index__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return self.value


async def test_plain_policies_run_in_a_thread() -> None:
    threads: list[int] = []

    def plain(prompt_ids: list[int], params: GenerateParams) -> Generation:
        threads.append(threading.get_ident())
        return Generation(token_ids=[*prompt_ids, 3], logprobs=[-1, -2.5])

    generation = await sample(plain, [2], PARAMS)
    assert generation.token_ids == [2, 3]
    assert threads != [threading.get_ident()]


async def test_async_policies_run_on_the_loop() -> None:
    class Policy:
        async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
            assert threading.get_ident() == loop_thread
            return Generation(token_ids=[params.turn], logprobs=[-0.5])

    async def function(prompt_ids: list[int], params: GenerateParams) -> Generation:
        return await Policy()(prompt_ids, params)

    loop_thread = threading.get_ident()
    for policy in (Policy(), function, Policy().__call__):
        assert (await sample(policy, [2], PARAMS)).token_ids == [1]


async def test_scalars_become_numbers() -> None:
    tokens: Any = [Scalar(5), Scalar(7)]
    logprobs: Any = (Scalar(-0.25), 0)
    generation = await sample(lambda ids, params: Generation(token_ids=tokens, logprobs=logprobs), [2], PARAMS)
    assert [type(token) for token in generation.token_ids] == [int, int]
    assert generation.token_ids == [5, 7]
    assert [type(value) for value in generation.logprobs] == [float, float]
    assert generation.logprobs == [-0.25, 0.0]


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "said"),
    [
        ([], [], "no token ids"),
        ([1, 2], [-1.0], "2 token ids and 1 log-probabilities"),
        ([1], [float("nan")], "not finite"),
        ([1], [float("-inf")], "not finite"),
        ([-1], [-1.0], "outside"),
        ([2**32], [-1.0], "outside"),
        ([1.5], [-1.0], "no numbers"),
        ([1], [None], "no numbers"),
    ],
)
async def test_bad_generations(token_ids: Any, logprobs: Any, said: str) -> None:
    with pytest.raises(BadGeneration, match=said):
        await sample(lambda ids, params: Generation(token_ids=token_ids, logprobs=logprobs), [2], PARAMS)


async def test_something_else_than_a_generation() -> None:
    policy: Any = lambda ids, params: {"token_ids": [1]}  # noqa: E731 - a policy of one line
    with pytest.raises(BadGeneration, match="dict"):
        await sample(policy, [2], PARAMS)
