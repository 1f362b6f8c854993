"""An environment of the operator's own for the real SkyRL-Gym, which writes down when it is made and closed.

Importing this needs the package, and registers the environment: the operator's file names this module.
"""

import os
from pathlib import Path
from typing import Any

import skyrl_gym
from skyrl_gym.envs.gsm8k.multi_turn_env import GSM8kMultiTurnEnv


class NotedGsm8k(GSM8kMultiTurnEnv):
    """SkyRL's own environment, noted."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__(env_config, extras or {})
        _note("open")

    def close(self) -> None:
        super().close()
        _note("close")


def _note(word: str) -> None:
    with Path(os.environ["GAME_LOG"]).open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


skyrl_gym.register(id="noted_gsm8k", entry_point=NotedGsm8k)
