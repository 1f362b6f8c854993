"""A rollout that kills every worker that runs it ends alone, and takes none of its neighbours along."""

from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.outcomes import Category, RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_poison_is_found_out_and_harms_nobody(tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.3, turns=6), tokenizer=tokenizer)
    env = {"ROLLOUTPOOL_PLUGINS": "tests.support.plugins", "PYTHONPATH": str(ROOT)}
    with (
        LocalPool(workers=2, flower=False, tokenizers=[TINY], env=env) as pool,
        pool.client() as client,
        serve_callback(app, [0]) as served,
    ):
        rollouts: list[dict[str, Any]] = [
            {"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(61)
        ]
        rollouts[5]["agent"] = "deadly"
        batch = client.submit(rollouts, defaults={"tokenizer_name": TINY, "idempotent": True}, trainer=served.url)
        results = {result.index: result for result in batch.results()}
    poison = results.pop(5)
    assert poison.failure is not None
    assert (poison.status, poison.failure.category) == (RolloutStatus.FAILED, Category.POISON)
    assert poison.failure.message.startswith("2 isolated workers died (exit:9) while they ran tools [")
    assert {result.status for result in results.values()} == {RolloutStatus.COMPLETED}
    # Two deaths of shared workers, two alone, and in between at most as often as the suspects can be halved.
    assert 4 <= poison.attempt <= 4 + 6
    assert max(result.attempt for result in results.values()) <= 4 + 6
