"""Connections to Redis and the scripts that run there.

redis-py 8 would raise once 100 connections are out, and cut blocking reads after 5 s; so pools here block, and
readers that wait get a connection without time-out. A pool that is handed to a client retries nothing unless told
to, and after a restart of Redis every pooled connection fails once; so ours are told to. A call may therefore reach
Redis twice when its answer is lost: every script is written so that the second arrival changes nothing.

Before its first command every connection runs `epoch.lua`. The script closes it where Redis holds data of another
version (`schema.py`), and raises the epoch where Redis was started again. A start cuts every connection, so each of our
commands is carried out in the epoch of its time.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from importlib.resources import files
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import (
    AbstractConnection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.connection import (
    Connection as TcpConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.schema import SCHEMA_VERSION, ForeignSchema, check_version
from rolloutpool_common.store.scripting import Scripts

__all__ = ["Connection"]

RETRIES = 3
"""Within half a second: for a connection that was cut, not for an outage, which callers have to know of."""

_FOLDER = files("rolloutpool_common.store").joinpath("scripts")
_PRELUDE = _FOLDER.joinpath("_prelude.lua").read_text(encoding="utf-8")
_SOURCES = {
    entry.name.removesuffix(".lua"): _PRELUDE + entry.read_text(encoding="utf-8")
    for entry in _FOLDER.iterdir()
    if entry.name.endswith(".lua") and not entry.name.startswith("_")
}


class EpochConnection(AbstractConnection):
    """Sends so that cancelling arrives, and notices when Redis was started again.

    redis-py sends within `asyncio.wait_for`, which on Python 3.11 loses a cancellation that comes in the very round in
    which the sending is done: one in four, measured on a loop of PINGs. A background task would then never end.
    """

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """As redis-py's, and a task for each command cheaper."""
        limit, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = limit

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """As redis-py's, then version and epoch, before anything else is asked; raises `ForeignSchema`."""
        await super().on_connect_check_health(check_health)
        await self.send_command("EVAL", _SOURCES["epoch"], 0, SCHEMA_VERSION, check_health=False)
        # A Redis that takes no writes now has nothing to tell apart by epochs; the reconciler will notice.
        with suppress(ResponseError):
            _, _, version = await self.read_response()
            try:
                check_version(version)
            except ForeignSchema:
                # redis-py closes a connection after its own errors only; an open one would be used next time.
                await self.disconnect(nowait=True)
                raise


class _Tcp(EpochConnection, TcpConnection):
    pass


class _Tls(EpochConnection, SSLConnection):
    pass


class _Unix(EpochConnection, UnixDomainSocketConnection):
    pass


_CLASSES: dict[type[AbstractConnection], type[AbstractConnection]] = {
    TcpConnection: _Tcp,
    SSLConnection: _Tls,
    UnixDomainSocketConnection: _Unix,
}


class Connection:
    """A pool of connections to one Redis, bound to the running event loop at first use."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        self.url = url
        # Any: redis-py types every reply as a union of all forms; with decode_responses off ours are bytes.
        self.redis: Any = self._client(max_connections, socket_timeout=30)
        self._scripts = Scripts(self.redis, _SOURCES)

    def _client(self, max_connections: int, socket_timeout: float | None) -> Redis:
        pool = BlockingConnectionPool.from_url(
            self.url,
            connection_class=_CLASSES[parse_url(self.url).get("connection_class", TcpConnection)],
            max_connections=max_connections,
            timeout=30,
            socket_timeout=socket_timeout,
            socket_connect_timeout=5,
            health_check_interval=25,
            retry=Retry(EqualJitterBackoff(cap=0.5, base=0.05), RETRIES),
        )
        return Redis(connection_pool=pool)

    def blocking(self) -> Any:
        """A client of its own for one blocking reader; the caller closes it."""
        return self._client(1, socket_timeout=None)

    async def script(self, name: str, *args: Any) -> Any:
        """Runs `scripts/<name>.lua`; raises `StoreUnavailable` or `StoreFull`."""
        with store_errors():
            return await self._scripts.run(name, args)

    async def close(self) -> None:
        """Closes all connections."""
        await self.redis.aclose(close_connection_pool=True)
