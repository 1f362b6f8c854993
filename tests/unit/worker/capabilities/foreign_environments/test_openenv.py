"""An OpenEnv server as an environment: reset, stepped, scored, closed; and one that behaves badly."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.games import RIGHT, SEED, WRONG
from tests.support.openenv_server import OpenEnvStub, none_left

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.environments.opened import checked_opening
from rolloutpool_worker.tools import ToolFailed

TEXT: dict[str, Any] = {"action_field": "number", "observation_field": "said"}


@contextlib.asynccontextmanager
async def served(server: OpenEnvStub, **entry: Any) -> AsyncIterator[OpenEnvEnvironment]:
    """The environment behind a server; no session is left there."""
    async with server.served():
        form = OpenEnvServer(url=f"{server.url}/", **{"crash": "restartable", **entry})
        environment = OpenEnvEnvironment("numbers", form, Targets.loopback())
        try:
            yield environment
            await none_left(server)
        finally:
            await environment.aclose()


async def played(environment: OpenEnvEnvironment) -> None:
    """One guess, in a session that is closed."""
    opened = await environment.open(None, SEED, "b-0", 1)
    try:
        await environment.call(opened.session, "guess", {"number": 1})
    finally:
        await environment.close(opened.session)


async def test_a_session_of_tools_is_opened_called_scored_and_closed() -> None:
    server = OpenEnvStub()
    async with served(server, headers={"X-Key": "k"}) as environment:
        assert not environment.by_text
        opened = await environment.open({"hard": True}, SEED, "b-0", 3)
        other = await environment.open(None, None, "b-1", 1)
        # Its first observation is empty.
        assert (opened.messages, [tool.function.name for tool in checked_opening(opened).tools]) == ([], ["guess"])
        assert checked_opening(opened).tools[0].function.parameters["required"] == ["number"]
        wrong = await environment.call(opened.session, "guess", {"number": WRONG})
        assert (wrong.content, wrong.reward, wrong.done) == ("wrong at guess 1", -0.5, False)
        right = await environment.call(opened.session, "guess", {"number": RIGHT})
        assert (right.content, right.reward, right.done) == ("right at guess 2", 1.0, True)
        score = await environment.score(opened.session, [])
        assert score is not None
        # That of the reset does not count.
        assert score.reward == 0.5
        for one in (opened, other, opened):
            await environment.close(one.session)
    assert server.seen[0] == {"type": "reset", "data": {"hard": True, "episode_id": "b-0-3", "seed": SEED}}
    assert server.seen[2] == {"type": "reset", "data": {"episode_id": "b-1-1"}}
    head = server.headers[0]
    assert (head["x-key"], head["x-rollout-id"], head["x-rollout-attempt"]) == ("k", "b-0", "3")
    assert "authorization" not in head


async def test_each_message_is_an_action_where_a_field_takes_it() -> None:
    async with served(OpenEnvStub(tools=False), **TEXT) as environment:
        assert environment.by_text
        opened = await environment.open(None, SEED, "b-0", 1)
        assert (opened.messages, opened.tools) == ([{"role": "user", "content": "Guess a number."}], ())
        answer = await environment.step(opened.session, f"{RIGHT}")
        assert (answer.content, answer.reward, answer.done) == ("right at guess 1", 1.0, True)
        assert answer.info == {"hidden": RIGHT}
        await environment.close(opened.session)


async def test_actions_of_another_form_are_a_tool() -> None:
    async with served(OpenEnvStub(tools=False)) as environment:
        opened = await environment.open(None, SEED, "b-0", 1)
        (tool,) = checked_opening(opened).tools
        assert (tool.function.name, tool.function.description) == ("step", "A guess.")
        assert list(tool.function.parameters["properties"]) == ["number"]
        answer = await environment.call(opened.session, "step", {"number": WRONG})
        # All of the observation, without what is not for the policy.
        assert answer.content == '{"said":"wrong at guess 1"}'
        await environment.close(opened.session)


async def test_one_that_is_full_has_the_rollout_wait() -> None:
    server = OpenEnvStub(capacity=1)
    async with served(server) as environment:
        opened = await environment.open(None, SEED, "b-0", 1)
        with pytest.raises(EnvironmentFull, match="no room"):
            await environment.open(None, SEED, "b-1", 1)
        await environment.close(opened.session)
        await environment.close((await environment.open(None, SEED, "b-1", 2)).session)
    assert server.most == 1


@pytest.mark.parametrize(
    ("what", "manner", "text"),
    [
        ("connect", "500", "answered 500 to the handshake"),
        ("reset", "FACTORY_ERROR", "the server answered FACTORY_ERROR to reset"),
        ("reset", "other type", "the answer to reset has another form"),
        ("reset", "at once", "the episode was over at once"),
        ("mcp", "INTERNAL", "the server answered INTERNAL to mcp"),
        ("mcp", "no data", "the answer to mcp has another form"),
        ("step", "EXECUTION_ERROR", "the server answered EXECUTION_ERROR to step"),
        ("step", "no data", "another form"),
        ("step", "other form", "another form"),
        ("step", "odd reward", "another form"),
        ("step", "odd done", "another form"),
        ("step", "tool in doubt", "a tool ended with timeout"),
        ("step", "end", "the connection has ended"),
    ],
)
async def test_what_goes_wrong_is_a_fault_and_leaves_no_session(what: str, manner: str, text: str) -> None:
    async with served(OpenEnvStub(manners={what: manner})) as environment:
        with pytest.raises(EnvironmentFault, match=text) as raised:
            await played(environment)
        assert "secret" not in str(raised.value)


async def test_an_observation_without_its_field_is_a_fault() -> None:
    async with served(OpenEnvStub(tools=False), action_field="number", observation_field="typo") as environment:
        # It may be missing before the first action.
        opened = await environment.open(None, SEED, "b-0", 1)
        assert opened.messages == []
        with pytest.raises(EnvironmentFault, match="an observation has no field typo") as raised:
            await environment.step(opened.session, "1")
        assert not raised.value.retryable
        await environment.close(opened.session)


@pytest.mark.parametrize("text", ["", "a", "\ud800", "9" * 1000, '{"number": 1}', "\x00", "x" * 10_000_000])
async def test_the_policy_reads_why_its_message_is_no_action(text: str) -> None:
    async with served(OpenEnvStub(tools=False), **TEXT) as environment:
        opened = await environment.open(None, SEED, "b-0", 1)
        if text.isdecimal():
            assert (await environment.step(opened.session, text)).content == "wrong at guess 1"
        else:
            with pytest.raises((ToolFailed, EnvironmentFault)) as raised:
                await environment.step(opened.session, text)
            # The server takes 4 MB, and ends the connection at more.
            said = "the connection has ended" if len(text) > 2**22 else "this is no action: number: Input should be"
            assert said in str(raised.value)
        await environment.close(opened.session)


async def test_the_policy_reads_what_a_tool_says_of_its_failure() -> None:
    async with served(OpenEnvStub(manners={"step": "tool failed"})) as environment:
        opened = await environment.open(None, SEED, "b-0", 1)
        # Also with numbers that are longer than those of most.
        answer = await environment.call(opened.session, "guess", {"number": 10**40})
        assert answer.content == "Error: no luck"
        await environment.close(opened.session)


async def test_a_result_with_an_image_is_the_environment_s_fault() -> None:
    async with served(OpenEnvStub(shows=("image",))) as environment:
        opened = await environment.open(None, SEED, "b-0", 1)
        says = r"environment numbers: a tool returned content\[1\]: type image; only text is supported"
        with pytest.raises(EnvironmentFault, match=says) as raised:
            await environment.call(opened.session, "guess", {"number": WRONG})
        assert not raised.value.retryable
        await environment.close(opened.session)
