"""A game for the real GEM, which writes down when it is made and closed.

Importing this needs the package, and registers the game: the operator's file names this module.
"""

import os
import random
from pathlib import Path
from typing import Any

import gem
from gem.envs.game_env.guess_the_number import GuessTheNumberEnv


class NotedNumber(GuessTheNumberEnv):
    """GEM's own game, noted; each answer draws a number too, as in games whose steps are random."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _note("open")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (f"{observation} ({random.randint(0, 10**9)})", *rest)

    def close(self) -> None:
        _note("close")


def _note(word: str) -> None:
    with Path(os.environ["GAME_LOG"]).open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


gem.register("noted:Number", NotedNumber, min_number=1, max_number=50, max_turns=7)
