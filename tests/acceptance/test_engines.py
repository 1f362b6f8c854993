"""Rollouts over both engines in a real pool, while the engines' weights are updated.

Batches over real engines, with kills, are in tests/real_engines; the campaign has imitated ones in its cast.
"""

import asyncio
from collections import defaultdict

from tests.support.engine_calls import fault_of
from tests.support.gradual_engine import GradualSampler, NotedCall, Update
from tests.support.scripted_ids import ScriptedIds
from tests.support.sglang_server import sglang_server
from tests.support.vllm_server import vllm_server

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool
from rolloutpool_trainer.testing import calculator_prompts

EACH = 4
TURNS = 2


async def exchange_weights(sampler: GradualSampler) -> None:
    """In the middle of the first turn, and of what is left of it."""
    for version, how in (("8", Update.ABORT), ("9", Update.FREEZE)):
        await sampler.holds_at(sampler.drawn + 5 * EACH)
        await sampler.update(version, how, seconds=0.05)


async def test_every_sample_is_what_its_engine_noted(pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    noted: defaultdict[str, list[NotedCall]] = defaultdict(list)
    async with (
        vllm_server(tokenizer) as vllm,
        sglang_server(tokenizer) as sglang,
        pool.async_client() as client,
    ):
        samplers = []
        for engine in (vllm, sglang):
            engine.version = "7"
            policy = ScriptedIds(tokenizer, turns=TURNS)
            samplers.append(GradualSampler(engine, policy, lambda call: noted[call.uid].append(call), pause=0.005))
        questions = calculator_prompts(2 * EACH, seed=14)
        batch = await client.submit(
            [
                {
                    "messages": [{"role": "user", "content": question}],
                    "server_url": (vllm, sglang)[number % 2].url,
                    "protocol": ("vllm", "sglang")[number % 2],
                }
                for number, question in enumerate(questions)
            ],
            defaults={"tokenizer_name": TINY},
        )
        await asyncio.gather(*map(exchange_weights, samplers))
        results = [result async for result in batch.results()]
    assert sorted(result.index for result in results) == list(range(2 * EACH))
    assert {(result.status, result.num_llm_calls) for result in results} == {(RolloutStatus.COMPLETED, TURNS)}
    faults = {result.uid: fault_of(result.model_dump(mode="json"), noted[result.uid]) for result in results}
    assert {uid: fault for uid, fault in faults.items() if fault} == {}
    assert sum(turn.aborts for result in results for turn in result.turns) > 0
    # A rollout may have ended before the last update.
    samples = [sample for result in results for sample in result.samples]
    assert {sample.version_min for sample in samples} | {sample.version_max for sample in samples} >= {7, 9}
