"""Http1Client: one request and its whole reply by HTTP/1.1, for turns.

A turn is the one call that a rollout makes again and again, and objects around it were a fifth of a worker's CPU. So
this is a small client over httptools' parser, which is nginx's and Node's (llhttp). A call takes these steps:

1. Host and port of the URL are checked (`Resolver.check`) before anything is sent.
2. A kept connection to this host is taken, or one is opened to an address that `Resolver.resolve` has checked.
3. A connection by which something came that nobody has asked for is closed, and the request goes by another one: what
   has come would pass for the reply. Such bytes are in the parser already, or still in the kernel. Head and body are
   then written at once, so nothing comes in between.
4. The reply is read to its end, within its limits of bytes and time (`deadlines`). Interim answers (1xx) are skipped.
5. The connection is kept for the next call, but not after a redirect or an error, or where more came than the reply.

No redirect is followed, no cookie kept and no proxy of the environment used: all of them would lead past the checks.

An error tells whether the other side can have had the request. `httpx.ConnectError` and `httpx.ConnectTimeout` say that
it cannot; every other one leaves that open. Bytes that are no HTTP are such an error: nothing is guessed.
"""

import asyncio
import socket
from base64 import b64encode
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import aiohappyeyeballs
import httpx

from rolloutpool_common.security.targets import as_address
from rolloutpool_worker.policy.certificates import verifying
from rolloutpool_worker.policy.connection import TurnConnection
from rolloutpool_worker.policy.deadlines import Deadlines
from rolloutpool_worker.policy.keepalive import open_socket
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import (
    CONNECT_SECONDS,
    CONNECTIONS,
    KEEPALIVE_SECONDS,
    NameUnresolved,
)
from rolloutpool_worker.policy.turn_client import TurnAnswer

NEXT_ADDRESS_SECONDS = 0.25
"""After which a name's next address is tried beside the one that does not answer."""
_URLS = 1024


class _Target(NamedTuple):
    """Holds what a URL means."""

    host: str
    port: int
    tls: bool
    place: tuple[str, int, bool]
    """The three."""
    head: bytes
    """The request's first lines without its method."""


class Http1Client:
    """The connections of a process to its trainers and engines; for one event loop."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        timeout: float,
        deadlines: Deadlines | None = None,
    ) -> None:
        """Opens nothing yet."""
        self.seconds = timeout
        self._connect_seconds = min(timeout, CONNECT_SECONDS)
        self._resolver = resolver
        self._deadlines = deadlines or Deadlines()
        self._kept: defaultdict[tuple[str, int, bool], list[TurnConnection]] = defaultdict(list)
        self._open: set[TurnConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        most_bytes: int,
        seconds: float | None = None,
    ) -> TurnAnswer:
        """See `TurnClient.ask`."""
        target = _target(url)
        self._resolver.check(target.host, target.port)
        request = _head(method, target, headers, body) + body
        whole = (self.seconds if seconds is None else seconds) + self._connect_seconds
        connection = self._take(target)
        if connection is None or not connection.is_clean():
            connection = await self._clean(target, connection)
        return await connection.ask(request, whole, most_bytes)

    async def _clean(self, target: _Target, kept: TurnConnection | None) -> TurnConnection:
        """Returns a connection by which nothing has come, in the place of a kept one, if that is not."""
        connection = kept
        for _ in range(CONNECTIONS):
            # A kept one only at first: where something came by it, all of them may be spoiled.
            connection = connection or await self._connect(target)
            if connection.is_clean() or await connection.is_clean_after_tickets():
                return connection
            connection.close()
            connection = None
        raise httpx.ConnectError("something came by this connection before the request")

    async def aclose(self) -> None:
        """Closes all connections; calls that are under way fail."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._deadlines.close()
        for connection in list(self._open):
            connection.close()
        self._kept.clear()

    def _take(self, target: _Target) -> TurnConnection | None:
        kept = self._kept.get(target.place)
        while kept:
            connection = kept.pop()
            if connection.kept_at + KEEPALIVE_SECONDS > asyncio.get_running_loop().time():
                return connection
            connection.close()
        return None

    def _keep(self, connection: TurnConnection) -> None:
        loop = asyncio.get_running_loop()
        connection.kept_at = loop.time()
        self._kept[connection.place].append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEPALIVE_SECONDS, self._close_old)

    def _close_old(self) -> None:
        """Closes what was kept long enough, and comes again while something is kept."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_SECONDS
        for place, kept in list(self._kept.items()):
            for connection in kept:
                if connection.kept_at <= oldest:
                    connection.close()
            left = [connection for connection in kept if connection.kept_at > oldest]
            if left:
                self._kept[place] = left
            else:
                del self._kept[place]
        if self._kept:
            self._sweep = loop.call_later(KEEPALIVE_SECONDS, self._close_old)

    async def _connect(self, target: _Target) -> TurnConnection:
        host, port = target.host, target.port
        found: list[aiohappyeyeballs.AddrInfoType] | None = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                found = await self._addresses(host, port)
                opened = await aiohappyeyeballs.start_connection(
                    found, loop=loop, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, socket_factory=open_socket
                )
                try:
                    made = await loop.create_connection(
                        lambda: TurnConnection(
                            target.place, self._deadlines, keep=self._keep, forget=self._open.discard
                        ),
                        sock=opened,
                        ssl=verifying() if target.tls else None,
                        server_hostname=host if target.tls else None,
                    )
                except BaseException:
                    opened.close()
                    raise
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} in time") from error
        except OSError as error:
            if found is None:
                raise NameUnresolved(f"the name {host} did not resolve ({error.strerror or error})") from error
            raise httpx.ConnectError(f"no connection to {host}:{port} ({error})") from error
        connection = made[1]
        self._open.add(connection)
        return connection

    async def _addresses(self, host: str, port: int) -> list[aiohappyeyeballs.AddrInfoType]:
        # What is written as an address was checked in full by `Resolver.check`.
        if (address := as_address(host)) is not None:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            return [_place(family, str(address), port)]
        return [_place(found["family"], found["host"], port) for found in await self._resolver.resolve(host, port)]


@lru_cache(_URLS)
def _target(url: str) -> _Target:
    parsed = httpx.URL(url)
    host = parsed.raw_host.decode("ascii")
    if parsed.scheme not in ("http", "https") or not host:
        raise httpx.UnsupportedProtocol("neither http:// nor https:// with a host")
    tls = parsed.scheme == "https"
    head = b"%b HTTP/1.1\r\nHost: %b\r\nUser-Agent: rolloutpool\r\nAccept: */*\r\n" % (parsed.raw_path, parsed.netloc)
    if parsed.userinfo:
        head += b"Authorization: Basic %b\r\n" % b64encode(f"{parsed.username}:{parsed.password}".encode())
    port = parsed.port or (443 if tls else 80)
    return _Target(host, port, tls, (host, port, tls), head)


def _head(method: str, target: _Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}\r\n")
    text = "".join(lines)
    # A line break in a value would begin a header, or a request, that nobody wrote.
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise httpx.InvalidURL("a header has a line break or a null")
    return b"%b %b%b\r\n" % (method.encode("ascii"), target.head, text.encode())


def _place(family: int, address: str, port: int) -> aiohappyeyeballs.AddrInfoType:
    place = (address, port) if family == socket.AF_INET else (address, port, 0, 0)
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place
