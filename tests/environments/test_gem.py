"""The adapter of GEM on the real package; `make test-environments` has it."""

import asyncio
import re
from importlib.util import find_spec
from typing import Any

import pytest

from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.plugins import PluginBroken

pytestmark = [
    pytest.mark.skipif(find_spec("gem") is None, reason="needs GEM: make test-environments"),
    # The package's own.
    pytest.mark.filterwarnings("default"),
]


def environment(**entry: Any) -> GemEnvironment:
    return GemEnvironment("game", PackageGame.model_validate({"crash": "restartable", **entry}))


async def played(game: GemEnvironment, seed: int, actions: list[str]) -> list[tuple[str, float | None, bool]]:
    opened = await game.open(None, seed, "b-0", 1)
    answers = [await game.step(opened.session, action) for action in actions]
    await game.close(opened.session)
    return [(opened.messages[0]["content"], None, False), *((one.content, one.reward, one.done) for one in answers)]


async def test_a_number_is_guessed_by_what_the_game_says() -> None:
    guess = environment(id="game:GuessTheNumber-v0-hard", options={"max_turns": 9})
    opened = await guess.open({"max_turns": 8}, 7, "b-0", 1)
    said = opened.messages[0]["content"]
    assert "within 8 turns" in said
    assert said.endswith("Enter your next guess.")
    low, high, turns, rewards = 1, 50, 0, []
    while True:
        number, turns = (low + high) // 2, turns + 1
        answer = await guess.step(opened.session, f"\\boxed{{{number}}}")
        rewards.append(answer.reward)
        if answer.done:
            break
        low, high = (number + 1, high) if "is higher than" in answer.content else (low, number - 1)
    assert re.fullmatch(rf"Congratulations! .* in {turns} turns\.", answer.content)
    assert (answer.info["terminated"], answer.info["truncated"]) == (True, False)
    score = await guess.score(opened.session, [])
    assert score.reward == sum(reward or 0 for reward in rewards)
    await guess.close(opened.session)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("game:Game2048-v0-easy", "\\boxed{left}"),
        ("game:Minesweeper-v0-easy", "\\boxed{reveal 2 2}"),
        ("game:Sudoku-v0-easy", "\\boxed{1 1 1}"),
        ("game:TowerofHanoi-v0-easy", "\\boxed{A B}"),
        ("game:Mastermind-v0-easy", "\\boxed{1 2}"),
    ],
)
async def test_games_beside_each_other_answer_as_they_do_alone(name: str, action: str) -> None:
    """Which a replay needs: 2048 draws a tile with each step, and each reset seeds the whole process."""
    game = environment(id=name)
    alone = [await played(game, seed, [action] * 3) for seed in range(3)]
    together = await asyncio.gather(*(played(game, seed, [action] * 3) for seed in range(3)))
    assert list(together) == alone


def test_one_that_nothing_registers_stops_the_start() -> None:
    with pytest.raises(PluginBroken, match="gem has no 'no such'"):
        environment(id="no such")
