"""What the API uses of uvicorn beyond its documented interface, so that an upgrade breaks this file alone.

- `HttpToolsProtocol.data_received` and the parser's callbacks `on_message_begin`, `on_url`, `on_header` and
  `on_headers_complete`: they see a request's head while it comes.
- `HttpToolsProtocol.send_400_response`: uvicorn answers with it when a callback raises an error.
- `HttpToolsProtocol.transport`: the connection to write to.
- `Server.shutdown`: runs before uvicorn waits for the requests that are under way.

`test_uvicorn_compat.py` fails where one of them is gone; `test_access.py` and `test_process.py` show that they do what
we need.
"""

import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rolloutpool_api.header_limit import RESPONSE_431, HeadSize

__all__ = ["HeadLimitProtocol", "StoppingServer"]


class HeadLimitProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with a bound on the size of a request's head."""

    _head: HeadSize | None = None

    @property
    def _size(self) -> HeadSize:
        if self._head is None:
            self._head = HeadSize()
        return self._head

    def data_received(self, data: bytes) -> None:
        """Refuses a head that grows too large within one header, before the bytes are parsed."""
        self._size.receive(len(data))
        if self._size.is_exceeded:
            self.send_400_response("")
            return
        super().data_received(data)

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
        """Stops counting, because the body has a limit of its own."""
        self._size.end()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers 431 instead where the head is too large, and closes the connection."""
        if not self._size.is_exceeded:
            super().send_400_response(msg)
            return
        self.transport.write(RESPONSE_431)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._size.parse(size)
        if self._size.is_exceeded:
            # The parser turns this into an error of its own, and uvicorn answers that with `send_400_response`.
            raise ValueError("the head is too large")


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
