"""What the store uses of redis-py beyond its documented interface, so that an upgrade breaks this file alone.

- `AbstractConnection.socket_timeout` is read anew by each `send_packed_command`: we send without redis-py's own limit.
- `AbstractConnection.on_connect_check_health` runs once per connection, before the first command: we ask for the epoch.
- `parse_url(url)["connection_class"]` tells TCP, TLS and unix sockets apart: we derive a class from each.
- `ConnectionPool.get_connection` and `release`, `connection.retry`, `read_response(timeout=math.inf)`: we send commands
  together without redis-py's pipeline, on a connection that we keep.

`test_redis_compat.py` fails where one of them is gone; `tests/integration/store` shows that they do what we need.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["Exchange", "GreetingConnection", "SSLConnection", "TcpConnection", "UnixDomainSocketConnection", "kind_of"]

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


class Exchange:
    """Sends commands together on a connection that it keeps, and reads their answers.

    redis-py's pipeline does the same. Its bookkeeping around these calls was a fifth of what Redis costs a worker
    (docs/decisions/0010), and lending a connection from the pool and giving it back is another 130 calls of functions.
    hiredis writes a command in an eighth of the time of redis-py's `pack_command`, with the same bytes
    (docs/decisions/0035).
    """

    def __init__(self, redis: Redis) -> None:
        """Takes its connections from the pool of `redis`, and nothing before the first commands."""
        self._pool: Any = redis.connection_pool
        self._idle: list[AbstractConnection] = []

    async def send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sends commands and returns their answers.

        Args:
            commands: Each a name and its arguments. Where the connection fails, they are sent again.

        Returns:
            An answer per command, in their order; a `ResponseError` for each that the server refused.

        Raises:
            redis.exceptions.RedisError: the connection failed, after the retries that the pool allows.
            TypeError: an argument is neither text nor bytes nor a number; nothing was sent.
        """
        # Who comes while another one sends has a connection of its own.
        connection = self._idle.pop() if self._idle else await self._pool.get_connection()
        try:
            answers: list[Any] = await connection.retry.call_with_retry(
                lambda: _send_and_read(connection, commands), lambda _: connection.disconnect()
            )
            return answers
        finally:
            if self._idle:
                await self._pool.release(connection)
            else:
                self._idle.append(connection)


async def _send_and_read(connection: AbstractConnection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    await connection.send_packed_command([pack_command(command) for command in commands])
    answers: list[Any] = []
    loop = asyncio.get_running_loop()
    limit = connection.socket_timeout
    try:
        async with asyncio.timeout(limit) as timer:
            for _ in commands:
                try:
                    # One timer for all: redis-py's own is made anew for each answer.
                    answers.append(await connection.read_response(timeout=math.inf))
                except ResponseError as error:
                    answers.append(error)
                if limit is not None:
                    timer.reschedule(loop.time() + limit)
    except TimeoutError:
        await connection.disconnect(nowait=True)
        raise RedisTimeoutError("Timeout reading from socket") from None
    return answers
