"""A connection by which something came that nobody asked for is not used: it would pass for the reply to a request."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.certificates import certificate
from tests.support.raw_server import answering
from tests.support.turn_clients import KINDS, asking

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy.aiohttp_compat import CleanConnector
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import CONNECTIONS, AiohttpTransport
from rolloutpool_worker.policy.turn_client import TurnClient

FOREIGN = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign"


class Server:
    """Answers each request with its own body, on connections that stay open."""

    def __init__(self) -> None:
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []
        """Of all connections, in the order in which they came."""
        self.asked: list[bytes] = []
        self.openings: list[bytes] = []
        """What is sent on the next connections before anything was asked; nothing on those after them."""
        self.has_spoken = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        self.writers.append(writer)
        writer.write(self.openings.pop(0) if self.openings else b"")
        self.has_spoken.set()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            self.asked.append(body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@contextlib.asynccontextmanager
async def serving(kind: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Server, TurnClient]]:
    server = Server()
    async with answering(server.handle, tls=tls) as listening:
        server.url = listening.url if tls is None else f"https://localhost:{listening.port}"
        async with asking(kind, Resolver(Targets.loopback()), timeout=5) as client:
            yield server, client


async def ask(client: TurnClient, url: str, body: bytes) -> bytes:
    return (await client.ask("POST", url, {}, body, most_bytes=10**7)).data


@pytest.fixture
def of_localhost(tmp_path: Path, trust: Callable[[Path], None]) -> ssl.SSLContext:
    """The certificate of a server whose authority is trusted."""
    file, context = certificate("localhost", "127.0.0.1", tmp_path)
    trust(file)
    return context


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("turns", [0, 20], ids=["in the kernel", "read by the loop"])
@pytest.mark.parametrize("body", [b"mine", b"", b"x" * 2_000_000], ids=["body", "no body", "large body"])
@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_on_a_kept_connection_are_no_reply(
    of_localhost: ssl.SSLContext, kind: str, turns: int, body: bytes, tls: bool
) -> None:
    async with serving(kind, of_localhost if tls else None) as (server, client):
        assert await ask(client, server.url, b"first") == b"first"
        server.writers[0].write(FOREIGN)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await ask(client, server.url, body) == body
        assert server.asked == [b"first", body]
        assert len(server.writers) == 2


async def test_bytes_that_come_while_the_request_waits_to_be_written_are_no_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Python 3.11 a body is written one turn of the loop after the connection was taken."""
    connect = CleanConnector.connect
    spoken = False

    async def taken(*given: Any, **options: Any) -> Any:
        nonlocal spoken
        connection = await connect(*given, **options)
        if server.writers and not spoken:
            spoken = True
            server.writers[0].write(FOREIGN)
        return connection

    async with serving("httpx") as (server, client):
        assert await ask(client, server.url, b"first") == b"first"
        monkeypatch.setattr(CleanConnector, "connect", taken)
        assert await ask(client, server.url, b"mine") == b"mine"
        assert server.asked == [b"first", b"mine"]


@pytest.fixture
def server_speaks_first(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """A connection is open for the worker only once its server has written to it."""
    servers: list[Server] = []
    connect = asyncio.base_events.BaseEventLoop.create_connection

    async def opened(*given: Any, **options: Any) -> Any:
        await servers[0].has_spoken.wait()
        servers[0].has_spoken.clear()
        return await connect(*given, **options)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "create_connection", opened)
    return servers


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_at_the_opening_are_no_reply(kind: str, server_speaks_first: list[Server]) -> None:
    async with serving(kind) as (server, client):
        server_speaks_first.append(server)
        server.openings = [FOREIGN]
        assert await ask(client, server.url, b"mine") == b"mine"
        assert server.asked == [b"mine"]
        assert len(server.writers) == 2


@pytest.mark.parametrize("opening", [FOREIGN, b"SSH-2.0", b"HTTP/1.1 2"], ids=["reply", "other", "half a head"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_always_speaks_first_was_never_asked(
    kind: str, server_speaks_first: list[Server], opening: bytes
) -> None:
    async with serving(kind) as (server, client):
        server_speaks_first.append(server)
        server.openings = [opening] * (CONNECTIONS + 1)
        with pytest.raises(httpx.ConnectError, match="before the request"):
            await ask(client, server.url, b"mine")
        assert server.asked == []
        assert len(server.writers) == CONNECTIONS


async def test_a_websocket_is_not_opened_over_such_a_connection(server_speaks_first: list[Server]) -> None:
    accepted = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    async with serving("httptools") as (server, _):
        server_speaks_first.append(server)
        server.openings = [accepted]
        client = AiohttpTransport(Resolver(Targets.loopback()), timeout=5)
        with pytest.raises(httpx.ConnectError, match="before the request"):
            await client.open_websocket(server.url, {}, most_bytes=1000)
        await client.aclose()
        assert server.asked == []


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_honest_server_gets_a_connection_for_each_call_at_once(
    of_localhost: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, kind: str, tls: bool
) -> None:
    # On a busy machine a pause of a second and a half is none.
    for room in ("transport", "http1"):
        monkeypatch.setattr(f"rolloutpool_worker.policy.{room}.KEEPALIVE_SECONDS", 60.0)
    calls, at_once = (200, 5) if tls else (1000, 20)
    async with serving(kind, of_localhost if tls else None) as (server, client):

        async def caller() -> None:
            for _ in range(calls // at_once):
                assert await ask(client, server.url, b"mine") == b"mine"

        await asyncio.gather(*(caller() for _ in range(at_once)))
        assert len(server.asked) == calls
    # By TLS a ticket that comes late costs one more.
    assert len(server.writers) <= at_once * (2 if tls else 1)
