"""The MCP adapter on real servers of the SDK, in the version that is installed; `make test-environments` has both."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.environments.mcp_server import make_server
from tests.support.raw_server import answering

from rolloutpool_common.errors import EnvironmentFault, TargetRefused
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.security.targets import Targets
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpEnvironment, McpServer
from rolloutpool_worker.capabilities.foreign_environments.tool_servers import ToolServers
from rolloutpool_worker.environments.opened import checked_opening

pytestmark = [
    pytest.mark.skipif(find_spec("mcp") is None, reason="needs the MCP SDK: make test-environments"),
    # The SDK's own: both versions warn of their own parts.
    pytest.mark.filterwarnings("default"),
]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "tests/environments/mcp_server.py")]
TOOLS = ["add", "who", "boom", "sleep", "huge", "die", "mark", "look", "complain"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that keeps a session for each connection."""
    with serve_callback(make_server().streamable_http_app(), [0]) as served:
        yield f"{served.url}/mcp"


@asynccontextmanager
async def environment(**server: Any) -> AsyncIterator[McpEnvironment]:
    made = McpEnvironment("counter", McpServer(**{"crash": "restartable", **server}), Targets.loopback())
    try:
        yield made
    finally:
        await made.aclose()


def of_kind(kind: str, url: str) -> dict[str, Any]:
    return {"url": url} if kind == "url" else {"command": COMMAND, "env": {"PYTHONPATH": str(ROOT)}}


@pytest.mark.parametrize("kind", ["url", "command"])
async def test_each_rollout_has_a_session_of_its_own(kind: str, url: str) -> None:
    async with environment(**of_kind(kind, url)) as there:
        first, second = [await there.open(None, None, f"b-{n}", n + 1) for n in range(2)]
        assert [tool.function.name for tool in checked_opening(first).tools] == TOOLS
        parameters = checked_opening(first).tools[0].function.parameters
        assert (parameters["required"], list(parameters["properties"])) == (["n"], ["n"])
        said = [
            (await there.call(opened.session, "add", {"n": n})).content
            for opened, n in ((first, 1), (first, 2), (second, 10))
        ]
        assert said == ["counter 1", "counter 3", "counter 10"]
        if kind == "command":
            assert (await there.call(second.session, "who", {})).content == "b-1 2 None"
        for opened in (first, second):
            await there.close(opened.session)
            await there.close(opened.session)
            with pytest.raises(EnvironmentFault, match="was not answered"):
                await there.call(opened.session, "add", {"n": 1})


async def test_a_tool_that_fails_is_read_by_the_policy(url: str) -> None:
    async with environment(url=url) as there:
        opened = await there.open(None, None, "b-0", 1)
        boom = (await there.call(opened.session, "boom", {})).content
        assert boom.startswith("Error: Error executing tool boom")
        assert (await there.call(opened.session, "add", {"n": "x"})).content.startswith("Error: ")
        # The session goes on.
        assert (await there.call(opened.session, "add", {"n": 1})).content == "counter 1"
        await there.close(opened.session)


async def test_a_call_that_is_given_up_ends_its_own_session_only(url: str) -> None:
    async with environment(url=url) as there:
        slow, other = [await there.open(None, None, f"b-{n}", 1) for n in range(2)]
        call = asyncio.create_task(there.call(slow.session, "sleep", {"seconds": 60}))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await there.call(other.session, "add", {"n": 1})).content == "counter 1"
        for opened in (slow, other):
            async with asyncio.timeout(10):
                await there.close(opened.session)


async def test_a_server_that_dies_in_a_call_is_a_fault_and_called_once(url: str) -> None:
    async with environment(**of_kind("command", url)) as there:
        opened = await there.open(None, None, "b-0", 1)
        async with asyncio.timeout(30):
            with pytest.raises(EnvironmentFault, match="die was not answered"):
                await there.call(opened.session, "die", {})
            await there.close(opened.session)


async def test_a_stateless_tool_that_says_it_is_read_only_is_called_again(url: str) -> None:
    async with environment(**of_kind("command", url), **{"crash": "stateless"}) as there:
        assert there.crash is CrashEffect.STATELESS
        opened = await there.open(None, None, "b-0", 1)
        async with asyncio.timeout(30):
            with pytest.raises(EnvironmentFault, match="die was not answered"):
                await there.call(opened.session, "die", {})
            assert (await there.call(opened.session, "who", {})).content == "b-0 1 None"
        await there.close(opened.session)


@pytest.mark.parametrize("kind", ["nothing there", "redirects", "leads inside", "hangs", "no such program"])
async def test_what_is_no_server_is_a_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpool_worker.policy.transport.CONNECT_SECONDS", 0.5)

    async def page(scope: Any, receive: Any, send: Any) -> None:
        host = b"http://169.254.169.254" if scope["path"] == "/inside" else b""
        headers = [(b"location", host + b"/elsewhere")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    with serve_callback(page, [0]) as served:
        async with answering(hang) as silent, asyncio.timeout(30):
            servers: dict[str, dict[str, Any]] = {
                "nothing there": {"url": "http://127.0.0.1:9/mcp"},
                "redirects": {"url": f"{served.url}/mcp"},
                "leads inside": {"url": f"{served.url}/inside"},
                # It takes the connection, and never answers the greeting of TLS.
                "hangs": {"url": f"https://127.0.0.1:{silent.port}/mcp"},
                "no such program": {"command": ["/nonexistent"]},
            }
            async with environment(**servers[kind]) as there:
                with pytest.raises(EnvironmentFault, match="no session"):
                    await there.open(None, None, "b-0", 1)


async def test_a_reply_of_20_mb_is_no_session() -> None:
    """Version 1 of the SDK logs that a body could not be read, and waits on. There the limit of the session ends it."""

    async def page(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'"%b"' % (b"x" * 20_000_000)})

    seconds, error = (30, EnvironmentFault) if hasattr(importlib.import_module("mcp"), "Client") else (3, TimeoutError)
    with serve_callback(page, [0]) as served:
        async with environment(url=f"{served.url}/mcp") as there:
            with pytest.raises(error):
                async with asyncio.timeout(seconds):
                    await there.open(None, None, "b-0", 1)


async def test_a_server_that_dies_and_comes_back_is_connected_to_again() -> None:
    with serve_callback(make_server().streamable_http_app(), [0]) as served:
        (port,) = served.ports
    async with environment(url=f"http://127.0.0.1:{port}/mcp") as there, asyncio.timeout(60):
        for attempt in (1, 2):
            with pytest.raises(EnvironmentFault, match="no session"):
                await there.open(None, None, "b-0", attempt)
            with serve_callback(make_server().streamable_http_app(), [port]):
                opened, lost = [await there.open(None, None, f"b-{n}", attempt) for n in range(2)]
                assert (await there.call(opened.session, "add", {"n": 1})).content == "counter 1"
                await there.close(opened.session)
            with pytest.raises(EnvironmentFault, match="add was not answered"):
                await there.call(lost.session, "add", {"n": 1})
            await there.close(lost.session)


async def test_a_host_that_may_not_be_called_is_not_called(url: str) -> None:
    made = McpEnvironment("counter", McpServer(url=url), Targets.parse("192.0.2.0/24"))
    async with asyncio.timeout(30):
        with pytest.raises(EnvironmentFault, match="TargetRefused"):
            await made.open(None, None, "b-0", 1)
    await made.aclose()


async def test_a_tool_server_at_an_address_that_is_not_allowed_is_refused_when_it_is_connected_to(url: str) -> None:
    """Its name is allowed, and leads to a private address."""
    servers = ToolServers(Targets.parse("localhost"))
    async with asyncio.timeout(30):
        with pytest.raises(TargetRefused, match="tool_server_url: localhost resolves to an address that may not be"):
            await servers.open(url.replace("127.0.0.1", "localhost"), None, "b-0", 1)
    await servers.aclose()
    allowed = ToolServers(Targets.loopback())
    opened = await allowed.open(url, None, "b-0", 1)
    assert (await allowed.call(opened.session, "add", {"n": 1})).content == "counter 1"
    await allowed.close(opened.session)
    await allowed.aclose()
