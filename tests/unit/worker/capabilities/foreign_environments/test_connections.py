"""Connections to environments' servers: servers that redirect, reply without end, hang and die."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.raw_server import answering

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.connections import (
    MOST_REPLY_BYTES,
    RedirectRefused,
    ReplyTooLarge,
    ServerConnections,
    attempt_headers,
)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[ServerConnections]:
    """Connections to this machine."""
    connections = ServerConnections(Targets.loopback())
    try:
        async with asyncio.timeout(10):
            yield connections
    finally:
        await connections.aclose()


async def read(connections: ServerConnections, url: str) -> int:
    """Posts, and reads the whole reply; its length."""
    response = await connections.send(httpx.Request("POST", url))
    async with contextlib.aclosing(response):
        return sum([len(part) async for part in response.aiter_bytes()])


async def test_what_was_never_used_is_closed() -> None:
    connections = ServerConnections(Targets.loopback())
    await connections.aclose()
    # A TLS context costs 128 ms, which stops the event loop.
    assert connections._transport is None


@pytest.mark.parametrize("where", ["/elsewhere", "http://169.254.169.254/latest", "http://127.0.0.2:9/"])
async def test_a_redirect_is_an_error_at_its_head_wherever_it_leads(where: str) -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 307 Go\r\nLocation: {where}\r\nContent-Length: 20000000\r\n\r\n".encode())
        # Of its body nothing comes.
        await reader.read()

    async with answering(handle) as server, connected() as connections:
        with pytest.raises(RedirectRefused, match="it answered 307, and no redirect is followed"):
            await read(connections, server.url)
    assert len(heads) == 1


@pytest.mark.parametrize(("size", "fits"), [(MOST_REPLY_BYTES, True), (MOST_REPLY_BYTES + 1, False)])
async def test_what_counts_is_the_reply_as_it_is_read(size: int, fits: bool) -> None:
    """Compressed, it is a thousandth of that."""
    body = gzip.compress(b"x" * size)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read()

    async with answering(handle) as server, connected() as connections:
        if fits:
            assert await read(connections, server.url) == size
        else:
            with pytest.raises(ReplyTooLarge):
                await read(connections, server.url)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_one_that_hangs_while_it_is_connected_to_is_given_up(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection, and never answers the greeting: of TLS, or of a WebSocket."""
    monkeypatch.setattr("rolloutpool_worker.policy.transport.CONNECT_SECONDS", 0.1)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with answering(handle) as server, connected() as connections:
        url = server.url.replace("http", scheme)
        with pytest.raises(httpx.TimeoutException):
            await connections.open_websocket(url, {})
        if scheme == "https":
            # Nothing was sent, so it cannot have had the request.
            with pytest.raises(httpx.ConnectTimeout):
                await read(connections, url)


def test_no_header_of_the_operators_speaks_for_another_attempt() -> None:
    headers = attempt_headers({"X-Key": "k", "X-Rollout-Id": "b-9"}, "b-0", 3)
    assert headers == {"X-Key": "k", "X-Rollout-Id": "b-0", "X-Rollout-Attempt": "3"}
