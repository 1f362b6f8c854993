"""The OpenEnv adapter on the real package's server; `make test-environments` has it."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from tests.support.games import RIGHT, SEED, WRONG
from tests.support.waiting import until_true

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.environments import EnvironmentFull, EnvironmentHost, SessionLife
from rolloutpool_worker.environments.opened import checked_opening
from rolloutpool_worker.tools import ToolFailed

pytestmark = [
    pytest.mark.skipif(find_spec("openenv") is None, reason="needs OpenEnv: make test-environments"),
    # The packages' own: they warn of their own parts.
    pytest.mark.filterwarnings("default"),
]

TEXT: dict[str, Any] = {"action_field": "message", "observation_field": "said"}


@asynccontextmanager
async def played(
    kind: str, entry: dict[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[OpenEnvEnvironment, Any]]:
    """The environment and its server, which has no session when the block ends."""
    games: Any = importlib.import_module("tests.environments.openenv_games")
    types = importlib.import_module("openenv.core.env_server.types")
    environment, action = {
        "tools": (games.NumberTools, types.Action),
        "typed": (games.NumberEnvironment, games.TypedAction),
        "text": (games.NumberEnvironment, games.SaidAction),
    }[kind]
    with games.serve_games(environment, action, **server) as served:
        form = OpenEnvServer(url=served.url, crash="restartable", **(TEXT if kind == "text" else {}), **(entry or {}))
        made = OpenEnvEnvironment("numbers", form, Targets.loopback())
        try:
            yield made, served
            await until_true(lambda: served.sessions() == 0)
        finally:
            await made.aclose()


async def test_tools_of_mcp_are_called() -> None:
    async with played("tools") as (environment, served):
        opened = await environment.open(None, SEED, "b-0", 1)
        other = await environment.open(None, SEED, "b-1", 1)
        assert served.sessions() == 2
        (tool,) = checked_opening(opened).tools
        assert (opened.messages, tool.function.name, tool.function.description) == ([], "guess", "Guesses the number.")
        assert tool.function.parameters["required"] == ["number"]
        said = [
            (await environment.call(one.session, "guess", {"number": number})).content
            for one, number in ((opened, WRONG), (opened, RIGHT), (other, RIGHT))
        ]
        assert said == ["wrong at guess 1", "right at guess 2", "right at guess 1"]
        refused = await environment.call(opened.session, "guess", {"number": "many"})
        assert refused.content.startswith("Error: ")
        failed = await environment.call(opened.session, "guess", {"number": 1000})
        assert (failed.content.startswith("Error: "), "the fuse is out" in failed.content) == (True, True)
        # No tool gives a reward here.
        assert await environment.score(opened.session, []) is None
        for one in (opened, opened, other):
            await environment.close(one.session)
        # When the close returns, the session is freed.
        assert served.sessions() == 0


async def test_typed_actions_are_a_tool() -> None:
    async with played("typed") as (environment, _):
        opened = await environment.open({"how": "!"}, SEED, "b-0", 1)
        assert opened.messages == [{"role": "user", "content": '{"said":"Guess a number!"}'}]
        (tool,) = checked_opening(opened).tools
        assert (tool.function.name, tool.function.description) == ("step", "A guess.")
        assert (list(tool.function.parameters["properties"]), tool.function.parameters["required"]) == (
            ["number"],
            ["number"],
        )
        wrong = await environment.call(opened.session, "step", {"number": WRONG})
        assert (wrong.content, wrong.reward, wrong.done) == ('{"said":"wrong at guess 1"}', -0.5, False)
        with pytest.raises(ToolFailed, match="this is no action: number: Input should be a valid integer"):
            await environment.call(opened.session, "step", {"number": "x"})
        with pytest.raises(ToolFailed, match="Extra inputs are not permitted"):
            await environment.call(opened.session, "step", {"number": 1, "cheat": True})
        # It counts no guess, and the session goes on.
        right = await environment.call(opened.session, "step", {"number": RIGHT})
        assert (right.content, right.reward, right.done) == ('{"said":"right at guess 2"}', 1.0, True)
        score = await environment.score(opened.session, [])
        assert score is not None
        assert score.reward == 0.5
        await environment.close(opened.session)


async def test_messages_are_actions() -> None:
    async with played("text") as (environment, _):
        opened = await environment.open(None, SEED, "b-0", 1)
        assert (opened.messages, opened.tools) == ([{"role": "user", "content": "Guess a number."}], ())
        answer = await environment.step(opened.session, f"I say {RIGHT}.")
        assert (answer.content, answer.reward, answer.done) == ("right at guess 1", 1.0, True)
        await environment.close(opened.session)


async def test_a_full_server_has_the_rollout_wait() -> None:
    async with played("text", capacity=1) as (environment, served):
        opened = await environment.open(None, SEED, "b-0", 1)
        for _ in range(3):
            with pytest.raises(EnvironmentFull, match="no room for another session"):
                await environment.open(None, SEED, "b-1", 1)
        assert served.sessions() == 1
        await environment.close(opened.session)
        await environment.close((await environment.open(None, SEED, "b-1", 2)).session)


async def test_an_idle_session_answers_pings() -> None:
    """A policy may sample for minutes; uvicorn ends a connection that does not answer in time."""
    async with played("text", ping_seconds=0.5) as (environment, _):
        opened = await environment.open(None, SEED, "b-0", 1)
        await asyncio.sleep(2)
        assert (await environment.step(opened.session, f"{WRONG}")).content == "wrong at guess 1"
        await environment.close(opened.session)


async def test_one_that_fails_hangs_or_is_huge_hurts_its_own_session_only() -> None:
    async with played("text") as (environment, _):
        host = EnvironmentHost(seconds=5.0, result_bytes=1000)

        async def life(uid: str) -> SessionLife:
            one = SessionLife(environment, EnvironmentChoice(name="numbers", seed=SEED), uid, 1, host)
            await one.open()
            return one

        failing, hanging, huge, good = [await life(f"b-{number}") for number in range(4)]
        for one, text, fault in (
            (failing, "1000", "answered EXECUTION_ERROR to step"),
            (hanging, "2000", "step did not answer in 5 s"),
            (huge, "3000", r"the connection has ended \(code 1009\)"),
        ):
            with pytest.raises(EnvironmentFault, match=fault) as raised:
                await one.step(text)
            assert "fuse" not in str(raised.value)
        assert (await good.step(f"{RIGHT}")).done
        for one in (failing, huge, good):
            await one.close()
        async with asyncio.timeout(10):
            await hanging.close()
        assert len(host) == 0
        # The server notices the end of the hanging one when it comes back.


@pytest.mark.parametrize("task", [{"seed": [1]}, "text"])
async def test_a_wrong_task_ends_the_session(task: Any) -> None:
    async with played("text") as (environment, _):
        with pytest.raises((RequestFault, EnvironmentFault)):
            await environment.open(task, None, "b-0", 1)
