"""Experts that a real SGLang has routed ids to are those to which plain forwards of the same weights route them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.real_engines.conftest import MIXED
from tests.real_engines.server import TORCH, EngineServer
from tests.real_engines.test_engines import assert_whole, submit

from rolloutpool_rl.attachments import routed_experts
from rolloutpool_trainer import LocalPool

pytestmark = pytest.mark.timeout(1200)

TIES = 1e-3
"""The share of choices in which two experts are worth so much alike that rounding decides."""


@pytest.mark.parametrize("engine", MIXED, indirect=True)
def test_routed_experts_are_those_of_a_plain_forward(
    pool: LocalPool, engine: EngineServer, trained: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    with pool.client() as client:
        batch = submit(client, engine, attach=["routed_experts"])
        results = list(batch.results())
        routed = [routed_experts(result, client.attachments(result.uid).pieces) for result in results]
    assert_whole(results)
    # Later turns ask for the rows that follow those of the turn before, and part of the context was in a cache.
    assert sum(len(result.turns) > 1 for result in results) > len(results) / 2
    samples = [sample for result in results for sample in result.samples]
    contexts = [context for of_one in routed for context in of_one]
    assert len(contexts) == len(samples)
    asked = tmp_path / "contexts.json"
    asked.write_text(json.dumps([[*sample.prompt_ids, *sample.response_ids] for sample in samples]))
    model = Path(__file__).with_name("model.py")
    routing = subprocess.run(
        [TORCH, model, "route", trained("experts")["1"], asked], check=True, capture_output=True, timeout=600
    )
    said = json.loads(routing.stdout)
    differ = choices = by_chance = 0
    for context, plain in zip(contexts, said, strict=True):
        # No turn has processed the last id.
        experts = np.array(plain)[:-1]
        assert context.present.all()
        assert context.experts.shape == experts.shape
        differ += int((context.experts != experts).sum())
        by_chance += int((context.experts[1:] != experts[:-1]).sum())
        choices += experts.size
    print(f"{choices} choices of experts in {len(samples)} samples, {differ} differ")
    assert differ <= TIES * choices
    # The comparison would notice rows that are shifted by one.
    assert by_chance > choices / 4
    assert len({int(one) for context in contexts for one in context.experts.ravel()}) == 8
