"""The adapter of SkyRL-Gym on the real package; `make test-environments` has it."""

import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.errors import RequestFault
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.plugins import PluginBroken

pytestmark = [
    pytest.mark.skipif(find_spec("skyrl_gym") is None, reason="needs SkyRL-Gym: make test-environments"),
    # The package's own.
    pytest.mark.filterwarnings("default"),
]

PROMPT = [{"role": "user", "content": "What is 6 times 7?"}]


def environment(**entry: Any) -> SkyrlGymEnvironment:
    return SkyrlGymEnvironment("math", PackageGame.model_validate({"crash": "restartable", **entry}))


async def test_a_game_of_several_turns_is_played_to_its_end() -> None:
    math = environment(id="gsm8k_multi_turn")
    row = {"prompt": PROMPT, "reward_spec": {"ground_truth": "42"}, "max_turns": 3}
    opened = await math.open(row, None, "b-0", 1)
    assert opened.messages == PROMPT
    wrong = await math.step(opened.session, "#### 41")
    assert (wrong.content.startswith("Please provide"), wrong.done) == (True, False)
    assert wrong.reward == pytest.approx(0.2 / 3)
    right = await math.step(opened.session, "#### 42")
    assert (right.content, right.reward, right.done) == ("", 1.0, True)
    score = await math.score(opened.session, [])
    assert score.reward == pytest.approx(1 + 0.2 / 3)
    assert score.parts == {"steps": 2.0}
    await math.close(opened.session)


async def test_a_question_of_one_turn_says_more_than_its_reward() -> None:
    aime = environment(id="aime")
    opened = await aime.open({"reward_model": {"ground_truth": "42"}}, None, "b-0", 1)
    assert opened.messages == []
    answer = await aime.step(opened.session, "Answer: 42")
    assert (answer.reward, answer.done, answer.info) == (1.0, True, {"acc": True, "pred": "42"})
    await aime.close(opened.session)


async def test_one_with_tools_and_a_configuration_reads_its_database(tmp_path: Path) -> None:
    folder = tmp_path / "spider/database/shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as database:
        database.execute("CREATE TABLE goods (name TEXT)")
        database.execute("INSERT INTO goods VALUES ('lamp')")
    sql = environment(id="text2sql", options={"db_path": str(tmp_path)})
    row = {"db_id": "shop", "data": "spider", "reward_spec": {"ground_truth": "SELECT name FROM goods"}}
    opened = await sql.open(row, None, "b-0", 1)
    seen = await sql.step(opened.session, "<think>I look.</think><sql>SELECT name FROM goods</sql>")
    assert ("lamp" in seen.content, seen.done) == (True, False)
    done = await sql.step(opened.session, "<think>So.</think><solution>SELECT name FROM goods</solution>")
    assert (done.done, done.reward) == (True, 1.0)
    await sql.close(opened.session)
    # Its row comes with the rollout.
    with pytest.raises(RequestFault):
        await sql.open({"db_id": "shop"}, None, "b-0", 1)


def test_one_that_nothing_registers_stops_the_start() -> None:
    with pytest.raises(PluginBroken, match="skyrl_gym has no 'no such'"):
        environment(id="no such")
