"""Samples turns together: `batched` makes a policy for `callback_app` from a function that samples many prompts.

An engine of its own (vLLM, SGLang) batches by itself and needs none of this. A model in the trainer's own process does:
asked turn by turn it samples one sequence at a time. How turns come together:

1. A turn waits for others until `most` wait, or until it has waited `wait` seconds itself.
2. All that wait then, up to `most`, are sampled in one call. Calls do not overlap: a model in one process has one
   forward pass at a time, and a batch that runs is the time in which the next one gathers.
3. Each turn gets its own generation. If the call fails, all its turns fail; the pool asks for them again.

Put the policy version into each `Generation`. Weights may change between the arrival of a turn and its batch, so only
the function that samples knows with which weights it did.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_trainer.endpoint.policy import BadGeneration, GenerateParams, Generation

GenerateMany = Callable[[list[list[int]], list[GenerateParams]], Sequence[Generation] | Awaitable[Sequence[Generation]]]


def batched(generate_many: GenerateMany, *, most: int = 64, wait: float = 0.02) -> "BatchedPolicy":
    """Makes a `generate` for `callback_app` that samples turns together.

    Args:
        generate_many: `(prompts, params) -> generations`, one for each prompt and in their order. Async, or plain (then
            it runs in a thread). Prompts have different lengths, and turns may differ in temperature and `max_tokens`.
        most: Most turns in one call.
        wait: Seconds for which a turn waits for others. With all rollouts in flight at once, 20 ms gather most of them.

    Raises:
        ValueError: `most` is below 1, or `wait` below 0.
    """
    if most < 1 or wait < 0:
        raise ValueError(f"most must be at least 1 and wait at least 0; they are {most} and {wait:g}")
    return BatchedPolicy(generate_many, most, wait)


@dataclass(frozen=True, slots=True)
class _WaitingTurn:
    prompt_ids: list[int]
    params: GenerateParams
    deadline: float
    """On the loop's clock."""
    generation: "asyncio.Future[Generation]"


class BatchedPolicy:
    """The policy that `batched` makes; it belongs to the event loop of its endpoint."""

    def __init__(self, generate_many: GenerateMany, most: int, wait: float) -> None:
        self._generate_many, self._most, self._wait = generate_many, most, wait
        self._waiting: deque[_WaitingTurn] = deque()
        self._arrived = asyncio.Event()
        self._sampler: asyncio.Task[None] | None = None

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Waits for the batch that samples this turn.

        Raises:
            BadGeneration: The function returned another number of generations than it was given prompts.
            Exception: Whatever the function raises.
        """
        loop = asyncio.get_running_loop()
        turn = _WaitingTurn(prompt_ids, params, loop.time() + self._wait, loop.create_future())
        if self._sampler is None or self._sampler.done():
            # A loop that was stopped has taken its sampler and its turns along; none of it may be used on this one.
            self._waiting.clear()
            self._arrived = asyncio.Event()
            self._sampler = loop.create_task(self._sample_all())
        self._waiting.append(turn)
        self._arrived.set()
        return await turn.generation

    async def _sample_all(self) -> None:
        """Steps 1 and 2, until no turn waits."""
        while self._waiting:
            await self._gather()
            turns = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            # A turn whose caller was cancelled is not worth a place in the batch.
            await self._sample([turn for turn in turns if not turn.generation.done()])

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._waiting) < self._most and (left := self._waiting[0].deadline - loop.time()) > 0:
            self._arrived.clear()
            try:
                # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes with the next turn.
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _sample(self, turns: list[_WaitingTurn]) -> None:
        """Step 3."""
        if not turns:
            return
        prompts, params = [turn.prompt_ids for turn in turns], [turn.params for turn in turns]
        try:
            # What an async function returns comes from the thread as a coroutine, and runs on the loop then.
            outcome: Any = await asyncio.to_thread(lambda: self._generate_many(prompts, params))
            generations = await outcome if inspect.isawaitable(outcome) else outcome
            if len(generations) != len(turns):
                raise BadGeneration(f"generate_many returned {len(generations)} generations for {len(turns)} prompts")
        except Exception as error:
            for turn in turns:
                if not turn.generation.done():
                    turn.generation.set_exception(error)
            return
        for turn, generation in zip(turns, generations, strict=True):
            if not turn.generation.done():
                turn.generation.set_result(generation)
