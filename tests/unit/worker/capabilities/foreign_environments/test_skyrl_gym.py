"""Environments of SkyRL-Gym: made with a row, stepped, scored; on a stand-in (tests/environments has the package)."""

from typing import Any

import pytest
from tests.support.text_packages import ENDED, put_skyrl_gym

from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments import EnvironmentHost, SessionLife

PROMPT = [{"role": "user", "content": "What is 6 times 7?"}]
ROW: dict[str, Any] = {"prompt": PROMPT, "reward_spec": {"ground_truth": "42"}, "other": [1]}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> SkyrlGymEnvironment:
    put_skyrl_gym(monkeypatch)
    ENDED.clear()
    return SkyrlGymEnvironment("math", PackageGame.model_validate({"id": "game", "options": {"most": 3}}))


async def test_a_row_is_played_scored_and_closed(environment: SkyrlGymEnvironment) -> None:
    opened = await environment.open(ROW, 7, "b-0", 1)
    assert opened.messages == PROMPT
    first = await environment.step(opened.session, "41")
    assert (first.content, first.reward, first.done) == ("Again.\n\nTurn 1.", 0.0, False)
    assert first.info["tool_input"] == ["db", None]
    last = await environment.step(opened.session, "42")
    assert (last.content, last.reward, last.done) == ("", 1.0, True)
    score = await environment.score(opened.session, [])
    # Of its metrics those that are numbers.
    assert (score.reward, score.parts) == (1.0, {"steps": 2.0})
    await environment.close(opened.session)
    assert ENDED == ["42"]
    # The row is as it was.
    assert ROW["reward_spec"] == {"ground_truth": "42"}


@pytest.mark.parametrize("text", ["stop", "exit"])
async def test_what_a_step_raises_is_a_fault_of_its_session(environment: SkyrlGymEnvironment, text: str) -> None:
    host = EnvironmentHost(seconds=5.0, result_bytes=1000)
    life = SessionLife(environment, EnvironmentChoice(name="math", task=ROW), "b-0", 1, host)
    await life.open()
    with pytest.raises(Exception, match="environment math: step failed with"):
        await life.step(text)
    await life.close()
    assert ENDED == ["42"]
