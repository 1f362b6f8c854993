"""For SkyRL: a generator (`GeneratorInterface`, read from SkyRL 0.4.0).

SkyRL takes one row for each rollout, so a rollout that forked raises `ExportRefused`. Where it trains step by step
(`generator.step_wise_trajectories`, and `step_wise=True` here), each sample is a row and `is_last_step` marks the last.
Its environment classes are not used: the pool's tools and agents are. A rollout that failed after all retries raises
`ExportRefused`. Policy versions and turns have no place.
"""

from collections.abc import Callable
from typing import Any

from rolloutpool_rl.export import skyrl_output
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation
from rolloutpool_trainer.client.results import FinishedRollout


class SkyRLPoolGenerator:
    """Pass it where SkyRL takes a generator."""

    def __init__(
        self,
        driver: PoolDriver,
        reward: Callable[[FinishedRollout, dict[str, Any]], float],
        *,
        step_wise: bool = False,
    ) -> None:
        """Makes a generator.

        Args:
            driver: Its `trainer` is where SkyRL's inference engines answer.
            reward: Of a rollout, and the entry's `env_extras`.
            step_wise: As SkyRL's `generator.step_wise_trajectories`.
        """
        self._driver, self._reward, self._step_wise = driver, reward, step_wise

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        """Runs a `GeneratorInput`; the rows of the `GeneratorOutput` are in its order.

        Raises:
            ExportRefused: A rollout is no training data.
        """
        names = input_batch.get("trajectory_ids")
        prompts, extras = input_batch["prompts"], input_batch.get("env_extras")
        sampling = dict(input_batch.get("sampling_params") or {})
        items = [{"messages": conversation(prompt), "sampling_params": sampling} for prompt in prompts]
        if names is not None:
            items = [item | {"group": name.instance_id} for item, name in zip(items, names, strict=True)]
        results = await self._driver.run(items)
        known = extras if extras is not None else [{}] * len(results)
        rewards = [self._reward(result, extra) for result, extra in zip(results, known, strict=True)]
        return skyrl_output(results, rewards, names, step_wise=self._step_wise)
