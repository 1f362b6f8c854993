"""AReaL's workflow, against the keys of its trajectories (AReaL 1.0.4, areal/workflow/rlvr.py)."""

from collections.abc import Callable

import numpy as np
from tests.support.api_documents import failed, result, version_segment

from rolloutpool_trainer.adapters.areal import ARealPoolWorkflow
from rolloutpool_trainer.adapters.driver import PoolDriver

DATA = {"messages": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}


def workflow(driver: PoolDriver) -> ARealPoolWorkflow:
    return ARealPoolWorkflow(driver, lambda rollout, data: float(data["answer"]), tensor=np.asarray)


async def test_an_episode_is_a_dict_of_tensors(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([version_segment("4")])
    found = await workflow(driver).arun_episode(None, DATA)
    assert isinstance(found, dict)
    assert set(found) == {"input_ids", "loss_mask", "logprobs", "versions", "turn_ids", "attention_mask", "rewards"}
    assert {array.shape for name, array in found.items() if name != "rewards"} == {(1, 4)}
    assert found["versions"].tolist() == [[-1, -1, 4, 4]]
    assert found["rewards"].tolist() == [2.0]


async def test_the_samples_of_a_fork_are_rows(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{"samples": [*version_segment("4", 3)["samples"], *result(0)["samples"]], "alignment": "forked"}])
    found = await workflow(driver).arun_episode(None, DATA)
    assert found is not None
    assert {array.shape for name, array in found.items() if name != "rewards"} == {(2, 5)}
    assert found["attention_mask"].tolist() == [[True] * 5, [True] * 4 + [False]]
    assert found["loss_mask"].tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]]
    assert found["rewards"].tolist() == [2.0, 2.0]


async def test_a_failure_rejects_the_episode(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([failed()], [failed()])
    assert await workflow(driver).arun_episode(None, DATA) is None
