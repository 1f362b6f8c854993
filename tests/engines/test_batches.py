"""Batches of 64 rollouts over engines with a real model, through weight updates and the death of a worker.

Each sample is held against what the engine has noted, and each trained id's log-probability against a plain forward
over the sample, by the weights that the sample names for this id.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.engine_calls import fault_of
from tests.support.gradual_engine import GradualSampler, NotedCall, Update
from tests.support.imitated_engine import ImitatedEngine
from tests.support.sglang_server import SglangServer, serve_sglang
from tests.support.vllm_server import VllmServer, serve_vllm
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_trainer import FinishedRollout, LocalPool
from rolloutpool_trainer.testing import calculator_prompts

pytest.importorskip("torch", reason="torch has an environment of its own: make test-engines")

# It imports torch.
from tests.engines.model_ids import ModelIds, plain_logprobs

# Deprecations inside torch are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

PROMPTS, SIZE, TURNS = 16, 4, 3
TOLERANCE = 1e-4
VERSIONS = ("7", "8", "9")
PATIENCE = 600.0
"""Seconds; a busy machine takes minutes for what an idle one does in one."""


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(TINY)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=2, flower=False, tokenizers=[TINY]) as running:
        yield running


def served(kind: str, tokenizer: ChatTokenizer) -> tuple[ImitatedEngine, AbstractAsyncContextManager[None]]:
    """An engine of this kind, and what serves it."""
    if kind == "sglang":
        sglang = SglangServer(tokenizer, [])
        return sglang, serve_sglang(sglang)
    vllm = VllmServer(tokenizer, [])
    vllm.scale_out = kind == "generate"
    return vllm, serve_vllm(vllm)


@pytest.mark.parametrize(
    ("kind", "pausing"), [("generate", Update.WAIT), ("completions", Update.FREEZE), ("sglang", Update.FREEZE)]
)
async def test_a_batch_through_weight_updates_and_the_death_of_a_worker(
    pool: LocalPool, tokenizer: ChatTokenizer, kind: str, pausing: Update
) -> None:
    with pool.client() as watcher:
        eventually(lambda: sum(worker.alive for worker in watcher.workers()) == 2, seconds=60)
    engine, serving = served(kind, tokenizer)
    engine.version = VERSIONS[0]
    noted: defaultdict[str, list[NotedCall]] = defaultdict(list)
    sampler = GradualSampler(
        engine, ModelIds(tokenizer, turns=TURNS), lambda call: noted[call.uid].append(call), pause=0.001
    )

    async def disturb() -> None:
        # A rollout has about a hundred ids, so all of them are on their way at each of these.
        await sampler.reached(600, PATIENCE)
        await sampler.update(VERSIONS[1], Update.ABORT)
        await sampler.reached(1800, PATIENCE)
        await sampler.update(VERSIONS[2], pausing)
        await sampler.reached(3000, PATIENCE)
        pool.kill_worker(0)

    def run() -> list[FinishedRollout]:
        # In a thread of its own: the model keeps the loop busy for long.
        with pool.client() as client:
            batch = client.submit(
                [{"messages": [{"role": "user", "content": text}], "n": SIZE} for text in prompts],
                trainer={"server_urls": [engine.url], "protocol": protocol, "model": "policy"},
                defaults={"tokenizer_name": TINY, "sampling_params": {"temperature": 1.0, "max_tokens": 200}},
            )
            return list(batch.results())

    prompts = calculator_prompts(PROMPTS, seed=14)
    protocol = "sglang" if kind == "sglang" else "vllm"
    async with serving:
        disturbing = asyncio.create_task(disturb())
        results = await asyncio.to_thread(run)
        await disturbing

    # Nothing is lost, and nothing comes twice.
    assert sorted(result.index for result in results) == list(range(PROMPTS * SIZE))
    assert {(one.status, one.alignment) for one in results} == {(RolloutStatus.COMPLETED, Alignment.EXACT)}
    assert {one.num_llm_calls for one in results} == {TURNS}
    faults = {one.uid: fault_of(one.model_dump(mode="json"), noted[one.uid]) for one in results}
    assert {uid: fault for uid, fault in faults.items() if fault} == {}
    # All that was meant to happen did: partial rollouts, a turn lost with its worker, samples of several weights.
    turns = [turn for one in results for turn in one.turns]
    assert sum(turn.aborts for turn in turns) >= SIZE
    assert any(turn.resampled for turn in turns)
    assert any(one.attempt > 1 for one in results)
    assert {versions_of(one) for one in results} >= {VERSIONS}
    assert {asked.path for asked in engine.asked if asked.status == 200} == {
        {"generate": "/inference/v1/generate", "completions": "/v1/completions", "sglang": "/generate"}[kind]
    }
    compared, worst, by_other_weights, one_further = compare(results)
    print(f"{kind}: {compared} log-probabilities, largest difference {worst:.1e}")
    assert compared == sum(one.response_tokens for one in results) > PROMPTS * SIZE * TURNS * 8
    assert worst <= TOLERANCE
    # The comparison would notice the wrong weights, and ids that are shifted by one.
    assert by_other_weights > 0.1
    assert one_further > 0.1


def versions_of(result: RolloutResult) -> tuple[str | None, ...]:
    """The versions that have sampled a result, in their order."""
    (sample,) = result.samples
    return tuple(dict.fromkeys(part.policy_version for part in sample.segments if part.kind == "sampled"))


def compare(results: Sequence[RolloutResult]) -> tuple[int, float, float, float]:
    """Holds log-probabilities against plain forwards.

    Args:
        results: All of one batch.

    Returns:
        How many were compared, and the largest difference; then the smallest of all samples' largest differences, if
        another version of the weights is taken, and if each id is taken for the one before it.
    """
    compared, worst = 0, 0.0
    other, shifted = [], []
    for result in results:
        (sample,) = result.samples
        whole = [*sample.prompt_ids, *sample.response_ids]
        first = len(sample.prompt_ids)
        plain = {version: plain_logprobs(version, whole) for version in VERSIONS}
        ours, theirs, wrong, late = [], [], [], []
        for part in sample.segments:
            assert part.policy_version is not None or part.kind != "sampled"
            for at in range(part.start, part.start + part.n):
                if sample.response_mask[at]:
                    version = str(part.policy_version)
                    ours.append(sample.response_logprobs[at])
                    theirs.append(plain[version][first + at - 1])
                    wrong.append(plain[VERSIONS[VERSIONS.index(version) - 1]][first + at - 1])
                    late.append(plain[version][first + at - 2])
        compared += len(ours)
        worst = max(worst, largest(ours, theirs))
        other.append(largest(ours, wrong))
        shifted.append(largest(ours, late))
    return compared, worst, min(other), min(shifted)


def largest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference of two lists."""
    return max(abs(one - two) for one, two in zip(ours, theirs, strict=True))
