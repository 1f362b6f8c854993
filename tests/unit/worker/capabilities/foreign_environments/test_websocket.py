"""A session's WebSocket: what keeps it open, and what ends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.openenv_server import OpenEnvStub, none_left
from tests.support.waiting import until_true

from rolloutpool_common.errors import EnvironmentFault, TargetRefused
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments import websocket
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.capabilities.foreign_environments.websocket import SessionSocket
from rolloutpool_worker.environments import EnvironmentFull

RESET = {"type": "reset", "data": {}}
GOODBYE = {"type": "close"}


@contextlib.asynccontextmanager
async def socket_to(server: OpenEnvStub, url: str | None = None) -> AsyncIterator[SessionSocket]:
    """A connection, which is not opened yet; none is left on the server."""
    async with server.served():
        connections = ServerConnections(Targets.loopback())
        socket = SessionSocket(connections, url or f"{server.url}/ws", {"X-Key": "ключ"})
        try:
            yield socket
            await socket.close(GOODBYE)
            await none_left(server)
        finally:
            await connections.aclose()


async def test_pings_are_answered_while_nothing_is_asked() -> None:
    """A real server ends a connection that does not; and a policy may sample for minutes."""
    server = OpenEnvStub()
    async with socket_to(server) as socket:
        await socket.open()
        await socket.ask(RESET)
        await until_true(lambda: server.pongs == 1)
        assert (await socket.ask(RESET))["type"] == "observation"
    assert server.headers[0]["x-key"].encode("utf-8", "surrogateescape").decode() == "ключ"


async def test_closing_waits_until_the_session_is_freed_and_is_harmless_when_repeated() -> None:
    server = OpenEnvStub()
    async with socket_to(server) as socket:
        await socket.close(GOODBYE)
        await socket.open()
        await socket.ask(RESET)
        assert server.sessions == 1
        for _ in range(3):
            await socket.close(GOODBYE)
            assert server.sessions == 0
        assert server.seen == [RESET, GOODBYE]
        with pytest.raises(EnvironmentFault, match="the connection has ended"):
            await socket.ask(RESET)


async def test_a_server_that_frees_nothing_does_not_hold_up_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "FREED_SECONDS", 0.05)
    monkeypatch.setattr("rolloutpool_worker.policy.transport.GOODBYE_SECONDS", 0.05)
    server = OpenEnvStub(manners={"reset": "hang"})
    async with server.served():
        connections = ServerConnections(Targets.loopback())
        socket = SessionSocket(connections, f"{server.url}/ws", {})
        await socket.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await socket.ask(RESET)
        async with asyncio.timeout(2):
            await socket.close(GOODBYE)
        await connections.aclose()


@pytest.mark.parametrize(
    ("manner", "text", "retryable"),
    [
        ("end", "the connection has ended", True),
        ("huge", r"the connection has ended \(code 1009\)", True),
        ("garbage", "its answer is no JSON object", False),
        ("list", "its answer is no JSON object", False),
    ],
)
async def test_what_ends_a_session(manner: str, text: str, retryable: bool) -> None:
    async with socket_to(OpenEnvStub(manners={"reset": manner})) as socket:
        await socket.open()
        with pytest.raises(EnvironmentFault, match=text) as raised:
            await socket.ask(RESET)
        assert raised.value.retryable is retryable


async def test_one_that_is_full_says_so_unasked() -> None:
    server = OpenEnvStub(capacity=0)
    async with socket_to(server) as socket:
        await socket.open()
        # It has spoken and closed by now, or it does so while it is asked.
        answer = await socket.ask(RESET)
        assert (answer["type"], answer["data"]["code"]) == ("error", "CAPACITY_REACHED")


async def test_one_that_talks_unasked_is_not_trusted() -> None:
    async with socket_to(OpenEnvStub(manners={"connect": "talk"})) as socket:
        await socket.open()
        await until_true(lambda: not socket._read.empty())
        with pytest.raises(EnvironmentFault, match="said something unasked"):
            await socket.ask(RESET)


@pytest.mark.parametrize(
    ("status", "error"),
    [("429", EnvironmentFull), ("503", EnvironmentFull), ("403", EnvironmentFault), ("302", EnvironmentFault)],
)
async def test_what_a_refused_handshake_means(status: str, error: type[Exception]) -> None:
    server = OpenEnvStub(manners={"connect": status})
    async with socket_to(server) as socket:
        with pytest.raises(error, match=f"answered {status} to the handshake"):
            await socket.open()
        # A redirect is not followed.
        assert len(server.headers) == 1


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://169.254.169.254/ws", TargetRefused),
        ("http://127.0.0.1:9/ws", EnvironmentFault),
        ("http://127.0.0.1:99999/ws", EnvironmentFault),
        ("ftp://127.0.0.1/ws", EnvironmentFault),
    ],
)
async def test_what_cannot_or_may_not_be_connected_to(url: str, error: type[Exception]) -> None:
    async with socket_to(OpenEnvStub(), url) as socket:
        with pytest.raises(error):
            await socket.open()
