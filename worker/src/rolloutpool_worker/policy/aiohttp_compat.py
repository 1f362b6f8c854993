"""Holds what the worker uses of aiohttp beyond its documented interface, so that an upgrade breaks this file alone.

- `ClientResponse.start(connection)`: the one place where a reply's status is known and its connection is still held.
- `Connection.protocol`: the handle of the socket.
- `ResponseHandler.force_close()` and `.close()`: the connection is not kept for another request, or closed at once.
- `TCPConnector.connect(…)` and `ClientRequest.write_bytes(…)`: the last places before a request without and with a body
  is written. In Python 3.11 a body, and the head with it, is written one turn of the event loop later than `connect`.
- `ResponseHandler.should_close`: whether something came that no request has asked for, as far as the loop has read it.
- `ResponseHandler.set_exception()` and `.exception()`: carry an error from the one who writes to the one who reads.

`test_aiohttp_compat.py` fails where one of them is gone; `test_transport.py` shows that they do what we need.

**A connection with unread bytes is not used.** HTTP/1.1 tells by nothing but order which request a reply belongs to, so
aiohttp takes bytes that stand on a kept connection for the reply to the request that it sends next. A proxy that
repeated each answer 30 ms later gave 288 of 600 rollouts another one's tokens. Such bytes may be in two places:

1. The event loop has read them: then aiohttp has them in a queue, and `should_close` says so.
2. They are still in the kernel: then the socket can be read. So it can be where its other side has closed it.

With TLS the second says little, because a server may send session tickets at any time. There the loop gets a few turns
to read what has come, and the first decides. Half a head that the loop has read already is in neither place: it spoils
the reply, which is then no HTTP, but can't take its place.
"""

import asyncio
import select
from typing import TYPE_CHECKING

import aiohttp
import httpx
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

_TURNS = 3
"""Of the event loop, to read what has come by TLS. A ticket takes two: one to notice it and one to read it."""


class UnaskedBytes(aiohttp.ClientConnectionError):
    """Something came by this connection before the request was written. The request was not sent."""


class CleanConnector(aiohttp.TCPConnector):
    """Gives no connection by which something has come that nobody has asked for."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list["Trace"], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Takes a kept connection or opens one; raises `UnaskedBytes`."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        assert protocol is not None
        try:
            for _ in range(_TURNS if _has_tls(protocol) and _can_be_read(protocol) else 0):
                await asyncio.sleep(0)
            if _has_unread_bytes(protocol):
                raise UnaskedBytes("something came by this connection before the request")
        except BaseException:
            connection.close()
            raise
        return connection


class CleanRequest(aiohttp.ClientRequest):
    """A request whose body goes to no connection by which something has come."""

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Writes head and body, or sends nothing and has `ClosingResponse.start` raise `UnaskedBytes`."""
        protocol = conn.protocol
        if protocol is not None and _has_unread_bytes(protocol):
            protocol.set_exception(UnaskedBytes("something came by this connection just before the request"))
            return
        await super().write_bytes(writer, conn, content_length)


class ClosingResponse(aiohttp.ClientResponse):
    """A response whose connection is not used again after a redirect or an error.

    Many servers close a connection after an error without announcing it. A call on such a connection would fail in a
    way that leaves open whether the trainer had the request.
    """

    _came_by: ResponseHandler | None = None

    async def start(self, connection: Connection) -> "ClosingResponse":
        """Reads the reply's head, then marks the connection for closing where the status asks for it."""
        protocol = self._came_by = connection.protocol
        await super().start(connection)
        if protocol is not None and isinstance(unasked := protocol.exception(), UnaskedBytes):
            # What was read is no reply: the request was not sent.
            raise unasked
        if self.status >= httpx.codes.MULTIPLE_CHOICES:
            self.discard()
        return self

    def discard(self) -> None:
        """Closes the connection: after the reply, or now where it waits for the next request or has got one."""
        if self._came_by is not None:
            self._came_by.force_close()
            if self.connection is None:
                # The whole body arrived with the head, so the connection is back in the pool already.
                self._came_by.close()


def _has_unread_bytes(protocol: ResponseHandler) -> bool:
    return protocol.should_close or (not _has_tls(protocol) and _can_be_read(protocol))


def _has_tls(protocol: ResponseHandler) -> bool:
    transport = protocol.transport
    return transport is not None and transport.get_extra_info("sslcontext") is not None


def _can_be_read(protocol: ResponseHandler) -> bool:
    """Whether bytes, or the end of the connection, are still in the kernel."""
    transport = protocol.transport
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or (descriptor := socket.fileno()) < 0:
        return True
    kernel = select.poll()
    kernel.register(descriptor, select.POLLIN)
    return bool(kernel.poll(0))
