"""The kernel probes the other side of each connection of a worker, so that one that is gone is noticed in time."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import httpx
import pytest
from tests.support.raw_server import answering

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy.keepalive import IDLE_SECONDS, INTERVAL_SECONDS, PROBES, open_socket
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport


def _connected_to(port: int) -> Iterator[socket.socket]:
    """The sockets of this process whose other side is this port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(int(name)))
            with one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                    yield one


@pytest.mark.parametrize("websocket", [False, True], ids=["a call", "a WebSocket"])
async def test_a_connection_that_waits_is_probed(websocket: bool) -> None:
    asked, options = asyncio.Event(), {}

    async def keep_waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    async with answering(keep_waiting) as server:
        transport = AiohttpTransport(Resolver(Targets.loopback()), timeout=60)
        call = asyncio.ensure_future(
            transport.open_websocket(server.url, {}, most_bytes=100)
            if websocket
            else transport.handle_async_request(httpx.Request("POST", server.url))
        )
        await asked.wait()
        for one in _connected_to(server.port):
            options = {
                name: one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        call.cancel()
        await asyncio.wait({call})
        await transport.aclose()
    assert options == {
        "TCP_KEEPIDLE": IDLE_SECONDS,
        "TCP_KEEPINTVL": INTERVAL_SECONDS,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": 0,
    }


def test_a_system_without_an_option_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
