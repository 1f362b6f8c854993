"""Subscription: hears what is published in a channel of Redis, by a connection of its own.

What is published while it is not connected is lost, so it is good for hints alone. A connection that nothing comes by
is asked from time to time whether it is still there: a network that was cut says nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

from rolloutpool_common.store.redis_compat import NOT_COMPLETE, answer_reader, pack_command

PING_SECONDS = 10.0


class Subscription(asyncio.Protocol):
    """One connection that is subscribed to one channel."""

    def __init__(self, channel: str, hear: Callable[[bytes], None]) -> None:
        """Is not connected yet; `hear` gets each message."""
        command: tuple[Any, ...] = ("SUBSCRIBE", channel)
        self._command = pack_command(command)
        self._hear = hear
        self._reader = answer_reader()
        self._transport: asyncio.Transport | None = None
        self._is_silent = False
        """Whether it was asked, and nothing has come since."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Hears until the connection ends, whose reason is raised."""
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=PING_SECONDS)
            if self._transport is None or self._ended.done():
                continue
            if self._is_silent:
                self._end(RedisConnectionError("silent for long"))
            else:
                self._is_silent = True
                self._transport.write(b"PING\r\n")
        self._ended.result()

    def close(self) -> None:
        """Disconnects."""
        self._end(RedisConnectionError("closed by this process"))
        # Nobody need have waited for its end.
        self._ended.exception()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribes."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._command)

    def data_received(self, data: bytes) -> None:
        """Gives away what was published."""
        self._is_silent = False
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not NOT_COMPLETE:
                if isinstance(answer, Exception):
                    return self._end(answer)
                if isinstance(answer, list) and answer[0] == b"message":
                    self._hear(answer[2])
        except InvalidResponse as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        self._end(exc or RedisConnectionError("Connection closed by server."))

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
