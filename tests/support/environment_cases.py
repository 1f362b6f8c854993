"""Each environment of a worker with a game behind it, so that one test plays them all."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support import games, text_packages
from tests.support.fake_mcp import fake_mcp
from tests.support.games import RIGHT, SEED, WRONG, GuessingGame, TextGame
from tests.support.openenv_server import OpenEnvStub
from tests.support.resources_server import ROW, ResourcesServer
from tests.support.text_packages import put_gem, put_skyrl_gym

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.security.targets import Targets
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpEnvironment, McpServer
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments import Environment, StepAnswer

KINDS = ("plug-in", "plug-in of texts", "http", "openenv", "openenv of texts", "mcp", "gem", "skyrl_gym")
FORM: dict[str, Any] = {"crash": "restartable", "places": 7}
"""What each entry of an operator says."""
TASK = {"prompt": [{"role": "user", "content": "Guess."}], "reward_spec": {"ground_truth": str(RIGHT)}}
NUMBERS = {"action_field": "number", "observation_field": "said"}


@dataclass
class EnvironmentCase:
    """An environment, and what a test has to know of the game behind it."""

    environment: Environment
    task: Any = None
    scores: bool = True
    open_sessions: Callable[[], int] = int
    """How many the game's own side has."""
    hang: Callable[[], None] = lambda: None
    """From now on the game does not answer."""

    async def play(self, session: Any, number: int) -> StepAnswer:
        """Guesses, by a call or by a text."""
        if self.environment.by_text:
            return await self.environment.step(session, str(number))
        answer = await self.environment.call(session, "guess", {"number": number})
        return answer if isinstance(answer, StepAnswer) else StepAnswer(answer)

    async def played(self, uid: str) -> list[tuple[str, float | None, bool]]:
        """A whole session: what a wrong guess is answered, and the right one."""
        opened = await self.environment.open(self.task, SEED, uid, 1)
        answers = [await self.play(opened.session, number) for number in (WRONG, RIGHT)]
        await self.environment.close(opened.session)
        return [(answer.content, answer.reward, answer.done) for answer in answers]


@contextlib.asynccontextmanager
async def environment_case(kind: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EnvironmentCase]:
    """Makes an environment of this kind and what is behind it, and closes both."""
    async with contextlib.AsyncExitStack() as stack:
        case = await _case(kind, monkeypatch, stack)
        yield case
        await case.environment.aclose()


async def _case(kind: str, monkeypatch: pytest.MonkeyPatch, stack: contextlib.AsyncExitStack) -> EnvironmentCase:
    targets = Targets.loopback()
    match kind:
        case "plug-in" | "plug-in of texts":
            made = GuessingGame if kind == "plug-in" else TextGame
            deeds: list[str] = []
            monkeypatch.setattr(games, "_note", lambda deed, *_: deeds.append(deed))
            return EnvironmentCase(
                made(CrashEffect.RESTARTABLE, places=7),
                open_sessions=lambda: deeds.count("open") - deeds.count("close"),
            )
        case "http":
            server = ResourcesServer()
            there = stack.enter_context(serve_callback(server.app, [0]))
            return EnvironmentCase(
                HttpEnvironment("numbers", HttpServer(url=there.url, done_flag=True, **FORM), targets),
                ROW,
                open_sessions=lambda: len(server.sessions),
                hang=lambda: server.manners.update(guess="hang"),
            )
        case "openenv" | "openenv of texts":
            stub = await stack.enter_async_context(OpenEnvStub(tools=kind == "openenv").served())
            form = OpenEnvServer(url=stub.url, **FORM, **({} if stub.tools else NUMBERS))
            return EnvironmentCase(
                OpenEnvEnvironment("numbers", form, targets),
                open_sessions=lambda: stub.sessions,
                hang=lambda: stub.manners.update(step="hang"),
            )
        case "mcp":
            fake = fake_mcp(monkeypatch)
            return EnvironmentCase(
                McpEnvironment("numbers", McpServer(url="http://127.0.0.1:9/mcp", **FORM), targets),
                scores=False,
                open_sessions=lambda: fake.opened - fake.closed,
            )
        case "gem":
            put_gem(monkeypatch)
            return EnvironmentCase(GemEnvironment("numbers", PackageGame.model_validate({"id": "game", **FORM})))
    put_skyrl_gym(monkeypatch)
    text_packages.ENDED.clear()
    game = PackageGame.model_validate({"id": "game", "options": {"most": 3}, **FORM})
    return EnvironmentCase(SkyrlGymEnvironment("numbers", game), TASK)
