"""What the store uses of redis-py beyond its documented interface, so that an upgrade breaks this file alone.

- `AbstractConnection.socket_timeout` is read anew by each `send_packed_command`: we send without redis-py's own limit.
- `AbstractConnection.on_connect_check_health` runs once per connection, before the first command: we ask for the epoch.
- `parse_url(url)["connection_class"]` tells TCP, TLS and unix sockets apart: we derive a class from each.
- `ConnectionPool.get_connection` and `release`, `connection.retry`, `read_response`: we send commands together without
  redis-py's pipeline.

`test_redis_compat.py` fails where one of them is gone; `tests/integration/store` shows that they do what we need.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["GreetingConnection", "SSLConnection", "TcpConnection", "UnixDomainSocketConnection", "exchange", "kind_of"]

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


async def exchange(redis: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Sends commands together on one connection and reads their answers.

    redis-py's pipeline does the same. Its bookkeeping around these calls was a fifth of what Redis costs a worker
    (docs/decisions/0010). hiredis writes a command in an eighth of the time of redis-py's `pack_command`, with the
    same bytes (docs/decisions/0035).

    Args:
        redis: Lends a connection of its pool; a caller waits where none is free.
        commands: Each a name and its arguments.

    Returns:
        An answer per command, in their order; a `ResponseError` for each that the server refused.

    Raises:
        redis.exceptions.RedisError: the connection failed, after the retries that the pool allows.
        TypeError: an argument is neither text nor bytes nor a number; nothing was sent.
    """
    pool: Any = redis.connection_pool
    connection = await pool.get_connection()
    try:
        answers: list[Any] = await connection.retry.call_with_retry(
            lambda: _send_and_read(connection, commands), lambda _: connection.disconnect()
        )
        return answers
    finally:
        await pool.release(connection)


async def _send_and_read(connection: AbstractConnection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    await connection.send_packed_command([pack_command(command) for command in commands])
    answers = []
    for _ in commands:
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers
