"""The seam between the endpoint and the model.

A policy is one callable: prompt ids in, sampled ids with their log-probabilities out.

    async def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
        ids, logprobs = await engine.sample(prompt_ids, temperature=params.temperature)
        return Generation(token_ids=ids, logprobs=logprobs)

Training rests on these ids. A generation without ids, with another number of log-probabilities, or with one that is
not finite is therefore refused here and never reaches a session.
"""

import asyncio
import inspect
import math
import operator
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rolloutpool_common.protocol.messages import Message


class BadGeneration(ValueError):
    """The policy returned something that cannot be trained on."""


@dataclass(frozen=True, kw_only=True)
class GenerateParams:
    """Holds what a turn is sampled with, in addition to its prompt."""

    rollout_id: str
    """The rollout's own name, as it was submitted."""
    turn: int
    """From 1."""
    messages: list[dict[str, Any]]
    """The conversation so far in normal form, from which the prompt was rendered."""
    tools: list[dict[str, Any]] | None
    """The tools in the prompt."""
    temperature: float
    """0: the likeliest id."""
    top_p: float
    """1.0: all ids."""
    max_tokens: int
    """Most ids of this turn, its stop token included."""
    stop: list[str] | None
    """Strings that end the turn, besides the model's stop tokens."""
    logprobs: bool
    """As the request says; a generation has log-probabilities in any case."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of the request that the protocol does not name: top_k, seed, min_p …"""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One sampled turn."""

    token_ids: Sequence[int]
    """[R], R ≥ 1; with the stop token, if the policy sampled one."""
    logprobs: Sequence[float]
    """[R], natural logarithm, finite."""
    finish_reason: Literal["stop", "length"] = "stop"
    policy_version: str | None = None
    """Which weights sampled it; None stands for the endpoint's `policy_version`."""


Generate = Callable[[list[int], GenerateParams], Generation | Awaitable[Generation]]


class EndpointPolicy(NamedTuple):
    """What an endpoint samples with."""

    generate: Generate
    parse: Callable[[str], Message] | None
    """Makes a message of what it has said; None finds calls as the tokenizer's chat template writes them."""
    version: str | None
    """Of its weights, at first; for turns whose generation names none."""


async def sample(generate: Generate, prompt_ids: list[int], params: GenerateParams) -> Generation:
    """Samples one turn and checks it. A function that is not async runs in a thread.

    Args:
        generate: The policy.
        prompt_ids: [P]
        params: What to sample with.

    Returns:
        The generation, with plain ints and floats.

    Raises:
        BadGeneration: There are no ids, an id is no uint32, or there is not one finite log-probability per id.
        Exception: Whatever the policy raises.
    """
    if _is_async(generate):
        outcome = generate(prompt_ids, params)
    else:
        outcome = await asyncio.to_thread(generate, prompt_ids, params)
    return _checked(await outcome if inspect.isawaitable(outcome) else outcome)


def _is_async(generate: Generate) -> bool:
    return inspect.iscoroutinefunction(generate) or inspect.iscoroutinefunction(type(generate).__call__)


def _checked(generation: Generation) -> Generation:
    if not isinstance(generation, Generation):
        raise BadGeneration(f"generate returned {type(generation).__name__}; return a Generation")
    try:
        # Scalars of tensor libraries neither serialise nor compare as numbers.
        ids = [operator.index(token) for token in generation.token_ids]
        logprobs = [float(logprob) for logprob in generation.logprobs]
    except (TypeError, ValueError) as error:
        raise BadGeneration(f"generate returned ids or log-probabilities that are no numbers: {error}") from None
    if not ids:
        raise BadGeneration("generate returned no token ids; a turn has at least its stop token")
    if len(ids) != len(logprobs):
        raise BadGeneration(f"generate returned {len(ids)} token ids and {len(logprobs)} log-probabilities")
    if not all(0 <= token < 2**32 for token in ids):
        raise BadGeneration("generate returned a token id outside 0 … 2**32 - 1")
    if not all(map(math.isfinite, logprobs)):
        raise BadGeneration("generate returned a log-probability that is not finite")
    return replace(generation, token_ids=ids, logprobs=logprobs)
