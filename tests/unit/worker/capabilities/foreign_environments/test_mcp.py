"""MCP servers as environments: the operator's entry, at most one call, and what is told to a server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.fake_mcp import FakeMcp, fake_mcp
from tests.support.games import GUESS

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker import plugin_errors
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpEnvironment, McpServer
from rolloutpool_worker.capabilities.foreign_environments.tool_servers import ToolServers
from rolloutpool_worker.plugins import PluginBroken


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeMcp:
    return fake_mcp(monkeypatch)


def environment(crash: str = "restartable", **entry: Any) -> McpEnvironment:
    entry = entry or {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "k"}}
    return McpEnvironment("tools", McpServer.model_validate({"crash": crash, **entry}), Targets.loopback())


async def test_a_session_is_opened_called_and_closed(server: FakeMcp) -> None:
    there = environment()
    opened = await there.open(None, None, "b-0", 3)
    assert list(opened.tools) == [GUESS]
    assert (await there.call(opened.session, "guess", {"number": 1})).content == "answer 1"
    server.is_error = True
    assert (await there.call(opened.session, "guess", {"number": 1})).content == "Error: answer 2"
    await there.close(opened.session)
    await there.close(opened.session)
    await there.aclose()
    assert (server.opened, server.closed) == (1, 1)
    headers = {"X-Key": "k", "X-Rollout-Id": "b-0", "X-Rollout-Attempt": "3"}
    assert server.told == [("http://127.0.0.1:9/mcp", headers, True)]


async def test_a_command_is_told_its_rollout_in_its_environment(server: FakeMcp) -> None:
    there = environment("stateless", command=["serve", "--fast"], env={"KEY": "k"})
    await there.close((await there.open(None, None, "b-0", 2)).session)
    told = {"KEY": "k", "ROLLOUT_ID": "b-0", "ROLLOUT_ATTEMPT": "2"}
    # A server without state need not keep a session.
    assert server.told == [("serve", ["--fast"], told, False)]


@pytest.mark.parametrize(
    ("crash", "repeatable", "calls"),
    [("restartable", True, 1), ("none", True, 1), ("stateless", False, 1), ("stateless", True, 2)],
)
async def test_a_call_whose_answer_is_lost_is_made_again_only_where_that_does_no_harm(
    server: FakeMcp, crash: str, repeatable: bool, calls: int
) -> None:
    server.repeatable, server.fails = repeatable, [OSError("secret")]
    there = environment(crash)
    opened = await there.open(None, None, "b-0", 1)
    # Without sessions, a next attempt would call the same tool on the same server.
    assert opened.once == ({"guess"} if (crash, repeatable) == ("stateless", False) else set())
    if calls == 1:
        with pytest.raises(EnvironmentFault, match=r"environment tools: guess was not answered: OSError: ") as raised:
            await there.call(opened.session, "guess", {})
        assert raised.value.retryable is (crash != "stateless")
    else:
        assert (await there.call(opened.session, "guess", {})).content == "answer 2"
        # Over a new connection.
        assert (server.opened, server.closed) == (2, 1)
    assert len(server.calls) == calls
    await there.close(opened.session)
    assert server.opened == server.closed


async def test_without_a_session_a_call_that_was_given_up_costs_the_connection_only(server: FakeMcp) -> None:
    """The policy has read that the time was over, and goes on."""
    there = environment("stateless")
    opened = await there.open(None, None, "b-0", 1)
    given_up = asyncio.create_task(there.call(opened.session, "hang", {}))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert (await there.call(opened.session, "guess", {})).content == "answer 2"
    await there.close(opened.session)
    assert (server.opened, server.closed) == (2, 2)


async def test_it_is_made_again_once(server: FakeMcp) -> None:
    server.repeatable, server.fails = True, [OSError(), ExceptionGroup("", [OSError(), ValueError("secret")])]
    there = environment("stateless")
    opened = await there.open(None, None, "b-0", 1)
    with pytest.raises(EnvironmentFault, match=r"guess was not answered twice: OSError"):
        await there.call(opened.session, "guess", {})
    assert len(server.calls) == 2
    await there.close(opened.session)


async def test_one_that_cannot_be_connected_to_is_a_fault_that_is_logged(
    server: FakeMcp, caplog: pytest.LogCaptureFixture
) -> None:
    plugin_errors._logged.clear()
    server.refuses = [ExceptionGroup("", [OSError("no such program")])]
    with pytest.raises(
        EnvironmentFault,
        match=r"environment tools: no session: OSError: no such program \(fake_mcp\.py:\d+ in connect\)",
    ) as raised:
        await environment().open(None, None, "b-0", 1)
    assert raised.value.retryable
    (line,) = [record for record in caplog.records if record.message == "plug-in failed"]
    assert (vars(line)["event_fields"]["plugin"], vars(line)["event_fields"]["error"]) == (
        "environment tools",
        "OSError",
    )


@pytest.mark.parametrize("made", [environment, lambda: ToolServers(Targets.loopback())], ids=["entry", "tool servers"])
def test_without_the_sdk_the_worker_does_not_start(monkeypatch: pytest.MonkeyPatch, made: Callable[[], object]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginBroken, match="pip install 'mcp>=1"):
        made()
