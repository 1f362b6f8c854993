"""A proxy between mangles answers: no sampled token of a result is one that the policy sampled for another request.

The rollouts have equal prompts, as a group has, so that nothing but the name in a reply tells whose it is. What the
policy has sampled is in its own log, and each answer is sampled once.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.support.engine_channels import BOTH
from tests.support.imitated_engine import Answer, CallName, ImitatedEngine, logprob_of
from tests.support.inside_worker import InsideWorker, inside_worker, sampled_with_mask_1
from tests.support.lying_proxy import (
    Cuts,
    Delays,
    Halves,
    LyingProxy,
    Manner,
    Mixed,
    Opens,
    Prepends,
    Repeats,
    Swaps,
    lying_proxy,
)
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say

from rolloutpool_common.outcomes import Category, RolloutStatus
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_worker.capabilities.engines import channel as engine
from rolloutpool_worker.policy import callback

ROLLOUTS = 8
AT_ONCE = 4
CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": {}, "b": 1}}}}\n</tool_call>'
MIXED = "the reply names another turn: a proxy or server between mixes answers"
MANNERS: list[Callable[[], Manner]] = [
    Manner,
    lambda: Repeats(0.001),
    lambda: Repeats(0.03),
    lambda: Delays(0.005),
    lambda: Swaps(0.05),
    Cuts,
    Prepends,
    Opens,
    Halves,
    lambda: Mixed([Repeats(0.002), Swaps(0.02), Cuts(), Prepends(), Opens(), Halves()], 0.5),
]
NAMES = ["honest", "repeats", "repeats late", "delays", "swaps", "cuts", "prepends", "opens", "halves", "mixed"]
ALL = pytest.mark.parametrize("manner", MANNERS, ids=NAMES)
PASSING: list[Callable[[], Manner]] = [lambda: Repeats(0.001), lambda: Repeats(0.03), Halves]
"""Those that spoil a few answers only, so that a call that is repeated gets through."""
TURNS = pytest.mark.parametrize("turns", [1, 3])


class Sampler:
    """Says something else in each call, and notes for which turn of which rollout."""

    def __init__(self, tokenizer: ChatTokenizer, turns: int) -> None:
        self.noted: defaultdict[tuple[str, int], list[list[int]]] = defaultdict(list)
        """What was sampled, by rollout and turn."""
        self._tokenizer, self._turns = tokenizer, turns
        self._numbers = itertools.count(1000)

    def sample(self, uid: str, turn: int) -> list[int]:
        """A turn: a tool call, or on the last one an answer."""
        number = next(self._numbers)
        text = CALL.format(number) if turn < self._turns else f"It is {number}."
        assert self._tokenizer.close_id is not None
        ids = [*self._tokenizer.encode(text), self._tokenizer.close_id]
        self.noted[uid, turn].append(ids)
        return ids

    def has_sampled(self, result: RolloutResult) -> bool:
        """Whether the result's tokens are what was sampled for its turns, in order."""
        rest = sampled_with_mask_1(result.samples)
        for turn in range(1, result.num_llm_calls + 1):
            own = next((ids for ids in self.noted[result.uid, turn] if rest[: len(ids)] == ids), None)
            if own is None:
                return False
            rest = rest[len(own) :]
        return not rest


class Server:
    """What is behind the proxy."""

    def __init__(self, sampler: Sampler, url: str, **options: Any) -> None:
        self.sampler, self.url = sampler, url
        self.options = options
        """Of rollouts that call it."""


@asynccontextmanager
async def trainer(tokenizer: ChatTokenizer, turns: int, **options: Any) -> AsyncIterator[Server]:
    """`callback_app` around the sampler; it says that it is idempotent only if it is told to."""
    sampler = Sampler(tokenizer, turns)

    def policy(_: list[int], params: GenerateParams) -> Generation:
        # Each rollout is named by its place, which the sampler's log has as its uid below.
        ids = sampler.sample(params.rollout_id, params.turn)
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop")

    app = callback_app(policy, tokenizer=tokenizer)
    async with scripted_trainer(tokenizer, say(), app=app, **options) as served:
        yield Server(sampler, served.url)


@asynccontextmanager
async def engine_of(server: Any, protocol: str, tokenizer: ChatTokenizer, turns: int) -> AsyncIterator[Server]:
    sampler = Sampler(tokenizer, turns)

    async def sample(name: str, _: list[int], __: int) -> Answer:
        named = CallName.read(name)
        ids = sampler.sample(named.uid, named.turn)
        return Answer(ids, "stop", [{"version": "1", "start": 0, "end": len(ids)}], [logprob_of(i) for i in ids])

    async with server(tokenizer) as running:
        assert isinstance(running, ImitatedEngine)
        running.sampler = sample
        yield Server(sampler, running.url, protocol=protocol)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked again is asked at once."""
    for channel in (callback, engine):
        monkeypatch.setattr(channel, "BACKOFF", Backoff(first_s=0.001, longest_s=0.002))


@pytest.fixture
async def worker(redis_url: str, tokenizers: TokenizerCache) -> AsyncIterator[InsideWorker]:
    # Where a part of another answer is taken for a reply, the rest of it never comes.
    limits = {"infra_retries": 0, "trainer_attempts": 8, "http_client_timeout": 10}
    async with inside_worker(redis_url, tokenizers, **limits) as made:
        yield made


async def results_of(
    worker: InsideWorker, proxy: LyingProxy, server: Server, *, at_once: int = AT_ONCE, settled: bool = False
) -> list[RolloutResult]:
    """Runs a group of rollouts with equal prompts, some of them at the same time.

    Args:
        worker: Runs them.
        proxy: What they call.
        server: What is behind it.
        at_once: How many run at the same time.
        settled: Whether the next begin only when the proxy has nothing to send any more.
    """
    (first, *_) = uids = await worker.submit(
        *({"rollout_id": str(i)} for i in range(ROLLOUTS)), server_url=proxy.url, **server.options
    )
    assert first.endswith("-0")
    for some in range(0, ROLLOUTS, at_once):
        await asyncio.gather(*(worker.take(uid) for uid in uids[some : some + at_once]))
        if settled:
            await proxy.settle()
    return [await worker.result(uid) for uid in uids]


def foreign(results: Sequence[RolloutResult], server: Server) -> list[str]:
    """The rollouts that ended well with other tokens than their own."""
    noted = server.sampler.noted
    for result in results:
        # A trainer's policy is told the rollout's own name, an engine the pool's.
        for turn in range(1, 4):
            noted[result.uid, turn] += noted.pop((str(result.rollout_id), turn), [])
    done = [result for result in results if result.status is RolloutStatus.COMPLETED]
    return [result.uid for result in done if not server.sampler.has_sampled(result)]


@ALL
@TURNS
async def test_with_the_turns_key_no_token_is_anothers(
    worker: InsideWorker, tokenizer: ChatTokenizer, manner: Callable[[], Manner], turns: int
) -> None:
    """Each failure says what happened, as far as the worker can see it; none of them blames the mask or the prompt."""
    async with trainer(tokenizer, turns) as server, lying_proxy(server.url, manner()) as proxy:
        results = await results_of(worker, proxy, server)
    assert foreign(results, server) == []
    failures = [result.failure for result in results if result.failure is not None]
    assert {failure.category for failure in failures} <= {Category.NETWORK_ERROR}, failures
    assert not any(failure.retryable for failure in failures)
    if manner in (Manner, MANNERS[3]):
        assert failures == []


@pytest.mark.parametrize("manner", PASSING, ids=["repeats", "repeats late", "halves"])
@TURNS
async def test_a_trainer_that_is_idempotent_is_asked_again(
    worker: InsideWorker, tokenizer: ChatTokenizer, manner: Callable[[], Manner], turns: int
) -> None:
    """A cut and a foreign reply are the same to it: each turn is sampled once, and all rollouts end well."""
    async with trainer(tokenizer, turns, announces=True) as server, lying_proxy(server.url, Manner()) as proxy:
        # The trainer's promise is known from the first reply on.
        await worker.run_one(server_url=proxy.url, rollout_id="first")
        proxy.manner = manner()
        results = await results_of(worker, proxy, server)
    assert foreign(results, server) == []
    assert all(len(sampled) <= 1 for sampled in server.sampler.noted.values())
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("manner", [Prepends, lambda: Swaps(0.5)], ids=["prepends", "swaps"])
async def test_the_failure_says_that_answers_are_mixed(
    worker: InsideWorker, tokenizer: ChatTokenizer, manner: Callable[[], Manner], turns: int
) -> None:
    """It said `mask_disproved` of three turns, and of one it said nothing."""
    async with trainer(tokenizer, turns) as server, lying_proxy(server.url, manner()) as proxy:
        proxy.past.append(b"HTTP/1.1 200 OK\r\nX-Turn-Key: b-0/1\r\nContent-Length: 2\r\n\r\n{}")
        results = await results_of(worker, proxy, server)
    assert foreign(results, server) == []
    said = [result.failure.message for result in results if result.failure is not None]
    assert any(MIXED in message for message in said), said


@pytest.mark.parametrize("turns", [1, 3])
async def test_an_error_that_is_another_turns_is_none_of_this_one(
    worker: InsideWorker, tokenizer: ChatTokenizer, turns: int
) -> None:
    """A 503 says that nothing was sampled, and may be asked again; that of another turn says nothing of this one."""
    async with trainer(tokenizer, turns) as server, lying_proxy(server.url, Prepends()) as proxy:
        proxy.past.append(b"HTTP/1.1 503 No\r\nX-Turn-Key: b-0/1\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
        results = await results_of(worker, proxy, server, at_once=1)
    failure = results[0].failure
    assert failure is not None
    assert (failure.category, failure.retryable, failure.http_status) == (Category.NETWORK_ERROR, False, None)
    assert MIXED in failure.message
    assert len(server.sampler.noted["0", 1]) == 1, "it was asked once"


@TURNS
@pytest.mark.parametrize("at_once", [1, AT_ONCE])
async def test_without_the_key_no_token_is_of_bytes_that_came_before_the_request(
    worker: InsideWorker, tokenizer: ChatTokenizer, turns: int, at_once: int
) -> None:
    """Of 600 rollouts, 200 got another's tokens. None fails now either: the bytes came by a connection that is left."""
    repeats = Repeats(0.002, idle=True)
    async with (
        trainer(tokenizer, turns, hides=["x-turn-key"]) as server,
        lying_proxy(server.url, repeats) as proxy,
    ):
        results = await results_of(worker, proxy, server, at_once=at_once, settled=True)
    assert foreign(results, server) == []
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert repeats.repeated > 0


@BOTH
@ALL
@TURNS
async def test_no_token_of_an_engine_is_anothers(
    worker: InsideWorker,
    tokenizer: ChatTokenizer,
    manner: Callable[[], Manner],
    turns: int,
    protocol: str,
    server: Any,
) -> None:
    """It is asked again: an engine keeps nothing."""
    async with AsyncExitStack() as stack:
        behind = await stack.enter_async_context(engine_of(server, protocol, tokenizer, turns))
        proxy = await stack.enter_async_context(lying_proxy(behind.url, manner()))
        results = await results_of(worker, proxy, behind)
    assert foreign(results, behind) == []
    failures = [result.failure for result in results if result.failure is not None]
    # Half of an answer with the beginning of another one behind it is no JSON, and has no name that could be compared.
    assert all(f.category is Category.NETWORK_ERROR or "not JSON" in f.message for f in failures), failures
    if isinstance(proxy.manner, Repeats | Delays | Halves):
        assert failures == []


@BOTH
async def test_an_engines_failure_says_that_answers_are_mixed(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    """It said that the engine had sampled from another prompt, or nothing at all."""
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(
            inside_worker(redis_url, tokenizers, infra_retries=0, trainer_attempts=1)
        )
        behind = await stack.enter_async_context(engine_of(server, protocol, tokenizer, 1))
        proxy = await stack.enter_async_context(lying_proxy(behind.url, Manner()))
        await worker.run_one(server_url=proxy.url, **behind.options)
        proxy.manner = Prepends()
        results = await results_of(worker, proxy, behind, at_once=1)
    assert foreign(results, behind) == []
    said = [result.failure.message for result in results if result.failure is not None]
    assert said
    assert all(MIXED in message for message in said), said
