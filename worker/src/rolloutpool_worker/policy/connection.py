"""TurnConnection: one connection to a server of HTTP/1.1, by which one request at a time is sent and its reply read.

httptools' parser calls back for each part of a reply. Three things are not its business:

- **What nobody asked for.** Bytes that come between requests spoil the connection; `is_clean` also asks the kernel.
- **How a reply ends**: with its length, with its last chunk, or, without either, with the connection. Interim answers
  (1xx) come before it and are skipped.
- **Limits**: of the body, of all that is no body, of time. An error's body has limits of its own, and beyond them it is
  left out, because the status says enough.
"""

import asyncio
import select
import zlib
from collections.abc import Callable, Mapping
from typing import cast

import httptools
import httpx

from rolloutpool_worker.policy.deadlines import Deadlines
from rolloutpool_worker.policy.refusal import MOST_BYTES as ERROR_BYTES
from rolloutpool_worker.policy.refusal import READ_SECONDS as ERROR_SECONDS
from rolloutpool_worker.policy.turn_client import TurnAnswer, late, read_headers

HEAD_BYTES = 2**16
"""Of a reply at the most that are no part of its body. The parser keeps a head, however long, until it ends."""
MOST_PER_BYTE = 10
"""Bytes for each one of the body. One in a chunk of its own takes six."""
INTERIM_ANSWERS = 16
"""Before a reply at the most."""
# As numbers: a member of httpx' enumeration is compared in six calls of functions.
OK, MULTIPLE_CHOICES = int(httpx.codes.OK), int(httpx.codes.MULTIPLE_CHOICES)
_TLS_TURNS = 3
"""Of the event loop, to read what has come by TLS. A ticket takes two: one to notice it and one to read it."""


class TurnConnection(asyncio.Protocol):
    """One connection, which has one request at a time."""

    kept_at = 0.0
    """Since when it waits for the next request, by the loop's clock."""
    due = 0.0
    """When the reply must be here, or the rest of an error's (see `Timed`)."""

    def __init__(
        self,
        place: tuple[str, int, bool],
        deadlines: Deadlines,
        *,
        keep: Callable[["TurnConnection"], None],
        forget: Callable[["TurnConnection"], None],
    ) -> None:
        """Is made by the event loop, once the socket is connected."""
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._deadlines = deadlines
        self._keep = keep
        self._forget = forget
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[TurnAnswer] | None = None
        """The reply that is read; None between requests."""
        self._is_spoiled = False
        """Whether something came that is no part of a reply."""
        self._headers: Mapping[str, str] | None = None
        """Of the reply; None until all of them are here."""
        self._kernel = select.poll()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._kernel.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def is_clean(self) -> bool:
        """Whether the connection stands and nothing has come by it, as far as the kernel knows."""
        # Before the kernel is asked: the number of a closed socket may be another one's by now.
        return not (self._is_spoiled or self._transport.is_closing() or self._kernel.poll(0))

    async def is_clean_after_tickets(self) -> bool:
        """The same by TLS, where a server may send session tickets at any time: they are read first."""
        for _ in range(_TLS_TURNS if self.place[2] else 0):
            await asyncio.sleep(0)
        return self.place[2] and not (self._is_spoiled or self._transport.is_closing())

    async def ask(self, request: bytes, seconds: float, most_bytes: int) -> TurnAnswer:
        """Sends a request and reads the reply to its end; errors as of `Http1Client.ask`."""
        reply: asyncio.Future[TurnAnswer] = self._loop.create_future()
        self._reply = reply
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._raw_bytes = self._body_bytes = self._interim = 0
        self._begin()
        self.due = self._loop.time() + seconds
        self._deadlines.add(self)
        self._transport.write(request)
        try:
            return await reply
        finally:
            # Otherwise the connection may have the next request already.
            if self._reply is reply:
                self.close()

    def close(self) -> None:
        """Closes the connection; a reply that is read fails."""
        # Before the transport says that the connection is lost: what came would pass for a reply that ends with it.
        if (reply := self._end()) is not None and not reply.done():
            reply.set_exception(httpx.ReadError("the connection was closed before the reply was whole"))
        self._forget(self)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Is called by the event loop."""
        if self._reply is None:
            self._is_spoiled = True
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the server changed the protocol"))
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"the reply is no HTTP ({error})"))
        self._raw_bytes += len(data)
        if self._raw_bytes > HEAD_BYTES + MOST_PER_BYTE * self._body_bytes:
            self._fail(httpx.RemoteProtocolError("the reply has too much that is neither body nor needed"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Is called by the event loop."""
        self._forget(self)
        if self._reply is None:
            return
        if exc is None and self._ends_with_connection:
            self._finish(b"".join(self._parts))
        elif exc is None:
            self._fail(httpx.RemoteProtocolError("the connection ended before the reply was whole"))
        else:
            self._fail(httpx.ReadError(f"the connection broke ({exc})"))

    def on_message_begin(self) -> None:
        """Is called by the parser, as are those below."""
        self._is_spoiled = self._is_spoiled or self._reply is None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, or a trailer of a body in chunks."""
        if self._headers is None:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """Knows how the body ends, and how much of it is read."""
        if self._reply is None:
            return
        self._status = self._parser.get_status_code()
        if self._status >= MULTIPLE_CHOICES:
            self._most_bytes = ERROR_BYTES
            # A body that trickles must not hold up the next try.
            self.due = self._loop.time() + ERROR_SECONDS
            self._deadlines.add(self)
        self._headers = headers = read_headers(self._lines)
        self._ends_with_connection = "content-length" not in headers and not headers.get(
            "transfer-encoding", ""
        ).lower().endswith("chunked")

    def on_body(self, part: bytes) -> None:
        """Takes a part of the body."""
        self._body_bytes += len(part)
        if self._body_bytes > self._most_bytes:
            # While it is read, because a reply need not say its length, or say the truth.
            self._finish_cut()
        elif self._reply is not None:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        """Gives the reply to its caller, if it is one."""
        if self._reply is None:
            return
        if self._status >= OK:
            parts = self._parts
            self._finish(parts[0] if len(parts) == 1 else b"".join(parts), keep=self._parser.should_keep_alive())
            return
        self._interim += 1
        if self._interim > INTERIM_ANSWERS:
            self._fail(httpx.RemoteProtocolError("the server answers with nothing but interim answers"))
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._headers = None
        self._parts: list[bytes] = []
        self._ends_with_connection = False

    def _finish(self, data: bytes, *, keep: bool = False) -> None:
        headers = self._headers or {}
        if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
            try:
                data = _decompressed(encoding, data, self._most_bytes)
            except _Longer:
                return self._finish_cut()
            except (ValueError, zlib.error) as error:
                return self._fail(httpx.DecodingError(f"the reply cannot be decompressed ({error})"))
        self._answer(TurnAnswer(self._status, headers, data, True, self.close))
        if keep and self._status < MULTIPLE_CHOICES:
            self._keep(self)
        else:
            # Many servers close a connection after an error without announcing it.
            self.close()
        return None

    def _finish_cut(self) -> None:
        if self._reply is not None:
            self._answer(TurnAnswer(self._status, self._headers or {}, b"", False, self.close))
            self.close()

    def expire(self) -> None:
        """The time is over: the reply is late, or what is left of an error's is left out."""
        if self._status >= MULTIPLE_CHOICES:
            self._finish_cut()
        else:
            self._fail(late(self._seconds))

    def _fail(self, error: Exception) -> None:
        reply = self._end()
        if reply is not None and not reply.done():
            reply.set_exception(error)
        self.close()

    def _answer(self, answer: TurnAnswer) -> None:
        reply = self._end()
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def _end(self) -> asyncio.Future[TurnAnswer] | None:
        """Ends the request that is under way, if there is one, and returns who waits for it."""
        reply, self._reply = self._reply, None
        self._deadlines.waiting.discard(self)
        return reply


class _Longer(Exception):
    """The body is longer than allowed."""


def _decompressed(encoding: str, data: bytes, most_bytes: int) -> bytes:
    """Undoes a compression that nobody asked for; raises ValueError, zlib.error or `_Longer`."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"its encoding is {encoding[:40]}")
    # 32: with the head of gzip or of zlib, whichever is there.
    reader = zlib.decompressobj(32 + zlib.MAX_WBITS)
    plain = reader.decompress(data, most_bytes)
    if reader.unconsumed_tail:
        raise _Longer
    if not reader.eof:
        raise ValueError("it is not whole")
    return plain
