"""Environments of GEM: options, observations, random numbers; on a stand-in (tests/environments has the package)."""

import asyncio
import random

import pytest
from tests.support.text_packages import GO_ON, put_gem
from tests.support.waiting import until_true

from rolloutpool_worker.capabilities.foreign_environments import gem
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> GemEnvironment:
    put_gem(monkeypatch)
    return GemEnvironment("numbers", PackageGame.model_validate({"id": "game", "options": {"most": 1000}}))


async def played(environment: GemEnvironment, seed: int | None, turns: int = 3) -> list[str]:
    opened = await environment.open(None, seed, "b-0", 1)
    texts = [(await environment.step(opened.session, "x")).content for _ in range(turns)]
    await environment.close(opened.session)
    return texts


async def test_a_game_is_reset_played_and_scored(environment: GemEnvironment) -> None:
    opened = await environment.open({"most": 3}, 7, "b-0", 1)
    assert opened.messages == [{"role": "user", "content": "A number up to 3.\nEnter your guess."}]
    answers = [await environment.step(opened.session, "x") for _ in range(4)]
    assert [answer.done for answer in answers] == [False, False, False, True]
    assert answers[0].content.endswith("\nEnter your next guess.")
    # Nothing is asked any more after the last one.
    assert answers[3].content.startswith("drawn ")
    assert not answers[3].content.endswith("guess.")
    assert (answers[3].info["terminated"], answers[3].info["truncated"]) == (False, True)
    score = await environment.score(opened.session, [])
    assert (score.reward, score.parts) == (2.0, {})
    await environment.close(opened.session)
    assert (await environment.step((await environment.open(None, 7, "b-0", 1)).session, "end")).done


async def test_games_that_run_beside_each_other_draw_as_if_they_were_alone(environment: GemEnvironment) -> None:
    """GEM seeds the whole process with each reset; a replay needs the same numbers again."""
    random.seed(5)
    undisturbed = [random.random() for _ in range(3)]
    random.seed(5)
    drawn = [random.random()]
    alone = [await played(environment, seed) for seed in range(4)]
    drawn.append(random.random())
    together = await asyncio.gather(*(played(environment, seed) for seed in range(4)))
    drawn.append(random.random())
    assert together == alone
    assert len({tuple(texts) for texts in alone}) == 4
    # The process draws on as before.
    assert drawn == undisturbed
    # Without a seed no two games are alike.
    assert await played(environment, None) != await played(environment, None)
    # numpy takes no seed as long as ours.
    assert await played(environment, 2**63 - 1) == await played(environment, 2**32 - 1)


async def test_a_game_that_hangs_holds_the_others_up_once(
    environment: GemEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gem, "LONGEST_CALL_SECONDS", 0.05)
    GO_ON.clear()
    hanging = await environment.open(None, 1, "b-0", 1)
    call = asyncio.create_task(environment.step(hanging.session, "hang"))
    await until_true(gem._generators.lock.locked)
    assert len(await played(environment, 2)) == 3
    assert not call.done()
    GO_ON.set()
    await call
