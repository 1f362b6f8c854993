"""Environments of packages: found when the worker starts, a thread for each game, and games that end too late."""

import asyncio
import threading
import time
from typing import Any

import pytest

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_worker.capabilities.foreign_environments.package import PackageEnvironment, PackageGame, as_json
from rolloutpool_worker.environments import EnvironmentHost, SessionLife, StepAnswer
from rolloutpool_worker.plugins import PluginBroken


class Echo(PackageEnvironment):
    """Answers what it is told, in a package that is always there."""

    package = "json"
    distribution = "python"

    def __init__(self, name: str, entry: PackageGame) -> None:
        super().__init__(name, entry)
        self.ended: list[str] = []
        self.go_on = threading.Event()

    def registered(self) -> dict[str, Any]:
        return {"echo": self.library}

    def begin(self, task: Any, seed: int | None) -> tuple[str, list[dict[str, Any]]]:
        if task == "wrong":
            raise RequestFault("there is no such task")
        if task == "slow":
            self.go_on.wait(5)
        return f"{task}-{seed}", [{"role": "user", "content": "Say something."}]

    def act(self, game: str, text: str) -> StepAnswer:
        if text == "hang":
            self.go_on.wait(5)
        return StepAnswer(f"{game}: {text}", reward=None if text == "hm" else float(len(text)), done=text == "end")

    def end(self, game: str) -> None:
        self.ended.append(game)
        super().end(game)


def echo(**entry: Any) -> Echo:
    return Echo("talk", PackageGame.model_validate({"id": "echo", "crash": "restartable", **entry}))


def life_of(environment: Echo, task: str, seconds: float = 5.0) -> SessionLife:
    host = EnvironmentHost(seconds=seconds, result_bytes=1000)
    return SessionLife(environment, EnvironmentChoice(name="talk", task=task, seed=3), "b-0", 1, host)


async def test_one_that_hangs_hurts_no_other_and_is_ended_when_it_returns() -> None:
    environment = echo()
    hanging, other = life_of(environment, "a", 0.5), life_of(environment, "b")
    for life in (hanging, other):
        await life.open()
    with pytest.raises(Exception, match="did not answer in"):
        await hanging.step("hang")
    assert (await other.step("hi")).content == "b-3: hi"
    await other.close()
    closing = asyncio.create_task(hanging.close())
    await asyncio.sleep(0.01)
    assert environment.ended == ["b-3"]
    environment.go_on.set()
    await closing
    assert environment.ended == ["b-3", "a-3"]


async def test_a_game_that_is_made_too_late_is_ended_too() -> None:
    environment = echo()
    life = life_of(environment, "slow", 0.2)
    with pytest.raises(Exception, match="open did not answer"):
        await life.open()
    await life.close()
    environment.go_on.set()
    deadline = time.monotonic() + 5
    while not environment.ended:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    with pytest.raises(RequestFault):
        await environment.open("wrong", 3, "b-0", 1)
    # Of a game that was never made nothing is left.
    assert environment.ended == ["slow-3"]


def test_what_is_not_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginBroken, match=r"environment talk: json has no 'no such'; see `modules`"):
        echo(id="no such")
    with pytest.raises(PluginBroken, match="no_such_module cannot be imported"):
        echo(modules=["no_such_module"])
    monkeypatch.setattr(Echo, "package", "no_such_package")
    with pytest.raises(PluginBroken, match="environment talk needs a package: pip install python"):
        echo()


def test_what_is_no_json_is_kept_as_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    info = {"tuple": (1, None), 3: Odd(), "set": {1}, "nan": float("nan")}
    assert as_json(info) == {"tuple": [1, None], "3": "odd", "set": "{1}", "nan": None}
    assert as_json({"x": "\ud800"}) == as_json(None) == as_json([1]) == {}
