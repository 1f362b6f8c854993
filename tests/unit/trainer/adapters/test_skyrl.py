"""SkyRL's generator, against the keys of its output (SkyRL 0.4.0, skyrl/train/generators/base.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.api_documents import failed, result
from tests.support.stub_pool import StubPool

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.skyrl import SkyRLPoolGenerator

KEYS = {
    "prompt_token_ids",
    "response_ids",
    "rewards",
    "loss_masks",
    "stop_reasons",
    "rollout_metrics",
    "rollout_logprobs",
    "trajectory_ids",
    "rollout_expert_indices",
    "is_last_step",
}


@dataclass
class TrajectoryID:
    """As SkyRL's."""

    instance_id: str
    repetition_id: int


def batch(**more: Any) -> dict[str, Any]:
    prompts = [[{"role": "user", "content": "1 + 1?"}]] * 2
    names = [TrajectoryID("q7", 0), TrajectoryID("q7", 1)]
    return {"prompts": prompts, "env_classes": ["x"] * 2, "trajectory_ids": names} | more


async def test_a_batch_is_answered_in_its_order(pool: StubPool, driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, {"samples": result(0)["samples"] * 2}])
    generator = SkyRLPoolGenerator(driver, lambda rollout, extra: extra["score"], step_wise=True)
    given = batch(env_extras=[{"score": 1.0}, {"score": 2.0}], sampling_params={"temperature": 0.5})
    output = await generator.generate(given)
    assert set(output) == KEYS
    assert [name.repetition_id for name in output["trajectory_ids"]] == [0, 1, 1]
    assert output["is_last_step"] == [True, False, True]
    assert [sum(rewards) for rewards in output["rewards"]] == [1.0, 2.0, 2.0]
    items = pool.requests[0].body["rollouts"]
    assert [item["group"] for item in items] == ["q7", "q7"]
    assert items[0]["sampling_params"] == {"temperature": 0.5}


async def test_a_failure_is_never_a_row(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, failed()], [failed()])
    with pytest.raises(ExportRefused):
        await SkyRLPoolGenerator(driver, lambda rollout, extra: 0.0).generate(batch(trajectory_ids=None))


async def test_a_fork_is_refused_unless_skyrl_trains_step_by_step(
    driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([{}, {"samples": result(0)["samples"] * 2}])
    with pytest.raises(ExportRefused, match="2 samples"):
        await SkyRLPoolGenerator(driver, lambda rollout, extra: 0.0).generate(batch())
