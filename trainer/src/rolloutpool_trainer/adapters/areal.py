"""For AReaL: a `RolloutWorkflow` (`arun_episode`, read from AReaL 1.0.4 and at cbff54d64).

AReaL makes no difference between a bad rollout and none: a rollout that failed by the infrastructure gives None, which
rejects the episode. Of a rollout that forked, every sample is a row of the same tensors, padded on the right as AReaL
pads. The messages have no place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from rolloutpool_rl.export import areal_trajectories
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation, is_sample
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.results import FinishedRollout


class ARealPoolWorkflow:
    """Pass it where AReaL takes a workflow."""

    def __init__(
        self,
        driver: PoolDriver,
        reward: Callable[[FinishedRollout, dict[str, Any]], float],
        *,
        tensor: Callable[[Any], Any] | None = None,
    ) -> None:
        """Makes a workflow.

        Args:
            driver: Its `trainer` is where AReaL's inference engine answers.
            reward: Of a rollout, and the episode's data.
            tensor: Makes a tensor of an array; None takes `torch.from_numpy`.
        """
        self._driver, self._reward, self._tensor = driver, reward, tensor

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Runs the episode of `data["messages"]`; the engine is not used, because the pool calls it over HTTP.

        Returns:
            Tensors [samples, longest], `rewards` [samples]; None rejects the episode.
        """
        (result,) = await self._driver.run([{"messages": conversation(data["messages"])}])
        if not is_sample(result):
            return None
        tensor = self._tensor or _from_numpy()
        rows = areal_trajectories(result, self._reward(result, data))
        longest = max(row["input_ids"].shape[1] for row in rows)
        return {name: tensor(np.concatenate([_padded(row[name], longest) for row in rows])) for name in rows[0]}


def _padded(array: np.ndarray[Any, Any], longest: int) -> np.ndarray[Any, Any]:
    """Pads [1, T] with zeros; AReaL goes by the attention mask. What has no T is left as it is."""
    return array if array.ndim == 1 else np.pad(array, ((0, 0), (0, longest - array.shape[1])))


def _from_numpy() -> Callable[[Any], Any]:
    with needing("areal==1.0.4"):
        import torch

    return torch.from_numpy  # type: ignore[no-any-return]
