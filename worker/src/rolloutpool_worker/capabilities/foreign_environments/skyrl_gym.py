"""SkyRL-Gym: text environments of SkyRL, made with `skyrl_gym.make`.

The task is a row of a data set in SkyRL's form. Its `prompt` goes to `init`, and what that returns follows the
rollout's own messages; the rest are the `extras` of the environment. `options` in the operator's file are its
`env_config`. SkyRL-Gym knows no seed.

A step's new messages are one message for the policy. SkyRL may put another text in the place of what the policy wrote
(`postprocessed_action`); the pool does not, because the tokens are those that were sampled.
"""

import copy
import importlib
import math
from collections.abc import Mapping
from typing import Any

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_common.protocol.content import content_fault
from rolloutpool_common.protocol.messages import text_of
from rolloutpool_worker.capabilities.foreign_environments.package import PackageEnvironment, as_json
from rolloutpool_worker.environments.base import StepAnswer


class SkyrlGymEnvironment(PackageEnvironment):
    """One environment of SkyRL-Gym."""

    package = "skyrl_gym"
    distribution = "skyrl-gym"

    def registered(self) -> Mapping[str, Any]:
        """Returns the registry."""
        registry: Mapping[str, Any] = self.library.registry
        return registry

    def begin(self, task: Any, seed: int | None) -> tuple[Any, list[dict[str, Any]]]:
        """Makes an environment with the row, and begins it with its prompt."""
        del seed
        if not isinstance(task, dict):
            raise RequestFault(f"environment {self.name}: its task is an object, a row of the data set")
        # An environment may change its row, and another attempt needs it as it was.
        extras = copy.deepcopy(task)
        prompt = extras.pop("prompt", [])
        config = importlib.import_module("omegaconf").OmegaConf.create(self.entry.options)
        try:
            game = self.library.make(self.entry.id, env_config=config, extras=extras)
        # With these an environment says that its row lacks something; the row comes with the rollout.
        except (AssertionError, KeyError) as error:
            raise RequestFault(f"environment {self.name} cannot use the task ({type(error).__name__})") from error
        messages, _ = game.init(prompt)
        return game, [dict(message) for message in messages]

    def act(self, game: Any, text: str) -> StepAnswer:
        """Steps with the message."""
        said = game.step(text)
        for message in said["observations"]:
            if (fault := content_fault(message.get("content"))) is not None:
                raise EnvironmentFault(f"environment {self.name}: it observes {fault}", retryable=False)
        content = "\n\n".join(text_of(message) for message in said["observations"])
        return StepAnswer(content, float(said["reward"]), bool(said["done"]), as_json(said.get("metadata")))

    def parts(self, game: Any) -> dict[str, float]:
        """Returns the numbers of `get_metrics`."""
        metrics = {key: float(value) for key, value in game.get_metrics().items() if isinstance(value, int | float)}
        return {key: value for key, value in metrics.items() if math.isfinite(value)}
