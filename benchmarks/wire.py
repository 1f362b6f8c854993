"""The part of HTTP/1.1 that two processes of ours need: bodies have a length, and nothing is pipelined.

It keeps trainer and load generator cheap. Nothing that strangers can reach may use it.
"""

import asyncio
import re
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_OK = (b"HTTP/1.1 200", b"HTTP/1.1 202")


class Messages:
    """Cuts the bytes that arrive into messages."""

    def __init__(self) -> None:
        self._buffer = b""
        self._needed = 0
        self._end = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Takes bytes; returns head and body of the message when it is complete, else None."""
        self._buffer = self._buffer + data if self._buffer else data
        if len(self._buffer) < self._needed:
            return None
        if not self._needed:
            self._end = self._buffer.find(b"\r\n\r\n")
            if self._end < 0:
                return None
            length = _LENGTH.search(self._buffer, 0, self._end + 2)
            self._needed = self._end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < self._needed:
                return None
        message = self._buffer[: self._end + 2], self._buffer[self._end + 4 : self._needed]
        self._buffer, self._needed = self._buffer[self._needed :], 0
        return message


def head(port: int, path: str) -> bytes:
    """Returns the beginning of a POST, up to the value of its length."""
    lines = (f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json", "Content-Length: ")
    return "\r\n".join(lines).encode()


class Client(asyncio.Protocol):
    """A client with one connection, which makes one request at a time."""

    def __init__(self) -> None:
        self._messages = Messages()
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[bytes] | None = None

    async def post(self, head: bytes, body: bytes) -> bytes:
        """Posts and returns the response's body; `head` is from `head()`. Raises RuntimeError if it failed."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return await self._answer

    @property
    def is_closed(self) -> bool:
        """Whether one of the two has closed the connection."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of the protocol."""
        message = self._messages.feed(data)
        if message is None or self._answer is None:
            return
        if message[0].startswith(_OK):
            self._answer.set_result(message[1])
        else:
            self._answer.set_exception(RuntimeError(f"{message[0]!r} {message[1][:500]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Part of the protocol."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the connection was closed"))


async def connect(port: int) -> Client:
    """Connects to a port of this machine."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client
