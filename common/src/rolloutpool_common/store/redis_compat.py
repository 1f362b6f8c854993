"""Holds what the store uses of redis-py beyond its documented interface, so that an upgrade breaks this file alone.

- `AbstractConnection.socket_timeout` is read anew by each `send_packed_command`: we send without redis-py's own limit.
- `AbstractConnection.on_connect_check_health` runs once per connection, before the first command: we ask for the epoch.
- `parse_url(url)["connection_class"]` tells TCP, TLS and unix sockets apart: we derive a class from each.
- `connection._reader`, `_writer` and `can_read`: a connection that redis-py has opened is taken over by our protocol.
  redis-py's streams and time limits were 60 calls of functions per call of a script (docs/decisions/0006).
- `ConnectionPool._available_connections` and `_in_use_connections`: we close connections that nobody uses.
- `DefaultParser.parse_error` makes redis-py's class of error out of what Redis refuses.

`test_redis_compat.py` fails where one of them is gone; `tests/integration/store` shows that they do what we need.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis
from hiredis import PushNotification, pack_command
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import (
    AbstractConnection,
    DefaultParser,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = [
    "NOT_COMPLETE",
    "GreetingConnection",
    "PushNotification",
    "RestingPool",
    "SSLConnection",
    "TcpConnection",
    "UnixDomainSocketConnection",
    "answer_reader",
    "kind_of",
    "pack_command",
    "take_over",
]

UNUSED_SECONDS = 10.0
NOT_COMPLETE = object()
"""What a reader returns where an answer is not complete yet."""
HANDLER_CLOSED = "the handler is closed"
"""The end of uvloop's `RuntimeError` for a write to a connection that is closed already."""


class GreetingConnection(AbstractConnection):
    """A connection whose sending can be cancelled, and which greets the server before its first command.

    redis-py sends within `asyncio.wait_for`, which on Python 3.11 loses a cancellation that comes in the very round in
    which the sending is done: one in four, measured on a loop of PINGs. A background task would then never end.
    """

    async def greet(self) -> None:
        """Talks to the server before anything else is asked on this connection; to be overridden."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Sends within `asyncio.timeout`, which loses no cancellation and needs no task per command."""
        limit, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from None
        except RuntimeError as error:
            # uvloop says it so where the connection was closed before the write. As redis-py's own error it is retried.
            if HANDLER_CLOSED not in str(error):
                raise
            raise RedisConnectionError("Connection closed before the write") from None
        finally:
            self.socket_timeout = limit

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Authenticates and selects the database, then greets."""
        await super().on_connect_check_health(check_health)
        await self.greet()


def kind_of(url: str) -> type[AbstractConnection]:
    """Returns redis-py's class for the connections of a URL: TCP, TLS or unix socket."""
    kind: type[AbstractConnection] = parse_url(url).get("connection_class", TcpConnection)
    return kind


class RestingPool(BlockingConnectionPool):
    """A pool that closes what was not used for `UNUSED_SECONDS`; redis-py's keeps as many as were ever used at once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """As redis-py's."""
        super().__init__(*args, **options)
        self._used: set[AbstractConnection] = set()
        """Since the last look."""
        self._look: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def release(self, connection: AbstractConnection) -> None:
        """Takes a connection back."""
        await super().release(connection)
        self._used.add(connection)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._rest)

    def _rest(self) -> None:
        unused = [connection for connection in self._available_connections if connection not in self._used]
        self._available_connections = [one for one in self._available_connections if one in self._used]
        self._used.clear()
        loop = asyncio.get_running_loop()
        if unused:
            self._closing = loop.create_task(_close(unused))
        left = self._available_connections or self._in_use_connections
        self._look = loop.call_later(UNUSED_SECONDS, self._rest) if left else None

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Closes all connections."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._closing is not None:
            await self._closing
        await super().disconnect(inuse_connections)


async def _close(connections: Sequence[AbstractConnection]) -> None:
    for connection in connections:
        await connection.disconnect(nowait=True)


async def take_over(connection: AbstractConnection, protocol: asyncio.Protocol) -> object:
    """Connects as redis-py does, with its TLS, its authentication and the greeting, and then speaks by our protocol.

    Args:
        connection: Of redis-py, not connected; it is of no use afterwards.
        protocol: Gets the connection, as if it had made it.

    Returns:
        What has to live as long as the connection.

    Raises:
        redis.exceptions.RedisError: The connection failed.
    """
    taken: Any = connection
    try:
        await taken.connect()
        # The streams may have read more than the answers to the greeting.
        if await taken.can_read() or taken._writer.transport.is_closing():  # noqa: SLF001
            raise RedisConnectionError("closed, or has spoken unasked")
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    # Both close the connection when they are forgotten.
    writer, taken._reader, taken._writer = taken._writer, None, None  # noqa: SLF001
    writer.transport.set_protocol(protocol)
    protocol.connection_made(writer.transport)
    return writer


def answer_reader() -> hiredis.Reader:
    """Makes a reader of answers with redis-py's own classes of errors; it returns `NOT_COMPLETE` until one is whole."""
    return hiredis.Reader(
        protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=NOT_COMPLETE
    )
