"""Holds what the API uses of uvicorn beyond its documented interface, so that an upgrade breaks this file alone.

- `HttpToolsProtocol.data_received` and the parser's callbacks `on_message_begin`, `on_url`, `on_header` and
  `on_headers_complete`: they see a request's head while it comes.
- `HttpToolsProtocol.send_400_response`: uvicorn answers with it when a callback raises an error.
- `HttpToolsProtocol.transport`: the connection to write to, and `client`: the address that it comes from.
- `HttpToolsProtocol.connection_made` and `connection_lost`, and `cycle` with its `response_complete`: whether a request
  is under way.
- `Server.shutdown`: runs before uvicorn waits for the requests that are under way.

`test_uvicorn_compat.py` fails where one of them is gone; `test_access.py` and `test_process.py` show that they do what
we need.
"""

import asyncio
import re
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rolloutpool_api.header_limit import RESPONSE_431, HeadSize
from rolloutpool_api.waiting_heads import RESPONSE_408, HeadWait, WaitingHeads

_UPGRADE = re.compile(rb"(\r\n)upgrade:(?=[ \t]*h2c[ \t]*\r\n)", re.IGNORECASE)


class HeadLimitProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with bounds on the size of a request's head and on its time."""

    heads: WaitingHeads
    """Those of the server, see `head_limits`."""
    _head: HeadSize | None = None
    _wait: HeadWait | None = None
    _begun = False
    """Whether anything has come on this connection."""
    _requested = False
    """Whether there has been a request on this connection; before, there is no `cycle`."""

    @property
    def _size(self) -> HeadSize:
        if self._head is None:
            self._head = HeadSize()
        return self._head

    @property
    def _is_between(self) -> bool:
        """Whether no request is under way: what comes next is a head."""
        return not self._requested or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._end_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuses a head that grows too large within one header, before the bytes are parsed."""
        self._size.receive(len(data))
        if self._size.is_exceeded:
            self.send_400_response("")
            return
        self._begun = True
        if self._is_between and b"h2c" in data:
            # Java's client offers HTTP/2 with each request, and takes an answer over HTTP/1.1. The parser believes that
            # no more HTTP/1.1 follows, and throws the body away.
            data = _UPGRADE.sub(rb"\1x-upgrade:", data)
        super().data_received(data)
        # uvicorn closes a connection that is silent after an answer, but any byte ends that, also one that begins no
        # head: the rest of a body that was answered without being read, or an empty line.
        if self._wait is None and self._is_between:
            self._await_head()

    def on_message_begin(self) -> None:
        """Begins to count."""
        self._size.begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Counts a piece of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stops counting and waiting, because the body has limits of its own."""
        self._size.end()
        self._end_wait()
        self._requested = True
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers 431 instead where the head is too large, and closes the connection."""
        if not self._size.is_exceeded:
            super().send_400_response(msg)
            return
        self.transport.write(RESPONSE_431)
        self.transport.close()

    def _await_head(self) -> None:
        # Not while the connection is being closed: then nothing comes any more.
        if not self.transport.is_closing():
            self._wait = self.heads.begin(self.client[0] if self.client else "", self._refuse_late)

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.end()
            self._wait = None

    def _refuse_late(self) -> None:
        self._wait = None
        # A connection on which nothing came is closed without a word: a browser opens some in advance.
        if self._begun:
            self.transport.write(RESPONSE_408)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._size.parse(size)
        if self._size.is_exceeded:
            # The parser turns this into an error of its own, and uvicorn answers that with `send_400_response`.
            raise ValueError("the head is too large")


def head_limits(limits: WaitingHeads) -> type[HeadLimitProtocol]:
    """Makes the protocol of one server, whose connections share these limits."""

    class Limited(HeadLimitProtocol):
        heads = limits

    return Limited


class StoppingServer(uvicorn.Server):
    """A server that tells the application when it begins to stop, before it waits for the requests under way."""

    def __init__(self, config: uvicorn.Config, *, on_stop: Callable[[], object]) -> None:
        """Prepares; `on_stop` is called once, on the event loop."""
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Calls `on_stop`, then stops."""
        # First, because uvicorn then waits for open requests. Those that wait for results end only if they are told.
        self._on_stop()
        await super().shutdown(sockets)
