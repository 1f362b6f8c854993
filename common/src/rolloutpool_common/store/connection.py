"""Connection: the ways to one Redis: scripts by a connection of their own, everything else by a pool.

redis-py's defaults do not fit here, in three points:

- Its pool raises an error once 100 connections are in use. Ours makes the next caller wait.
- It cuts a read after 5 s. Readers that wait for something to happen get a connection without a time limit.
- It repeats nothing, but after a restart of Redis every pooled connection fails once. Ours repeats a command three
  times within half a second. A command may therefore reach Redis twice when its answer is lost, and every script is
  written so that the second arrival changes nothing.

Before its first command every connection runs `epoch.lua`. The script closes it where Redis holds data of another
version (`schema.py`), and raises the epoch where Redis was started again. A start cuts every connection, so each of our
commands is carried out in the epoch of its time.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from rolloutpool_common.capability import StoredCapability
from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.keys import PREFIX
from rolloutpool_common.store.redis_compat import (
    GreetingConnection,
    RestingPool,
    SSLConnection,
    TcpConnection,
    UnixDomainSocketConnection,
    kind_of,
    take_over,
)
from rolloutpool_common.store.schema import OLDEST_READ, SCHEMA_VERSION, ForeignSchema, check_version
from rolloutpool_common.store.script_sources import ScriptFiles, sets_of
from rolloutpool_common.store.scripting import Scripts
from rolloutpool_common.store.sender import RETRIES
from rolloutpool_common.store.store_call import StoreCall
from rolloutpool_common.store.subscription import Subscription

_FILES = ScriptFiles.read(CAPABILITIES)
_SOURCES = _FILES.sources()
LONE_SECONDS = 2.0
"""Without an answer for so long a script of a `LoneConnection` fails."""
MOST_USING = 4096
"""Batches of which a connection remembers what they use; plain ones need not be remembered."""


def source_of(script: str, used: str = "") -> str:
    """Returns the whole text of a script, for a connection that is not of a pool."""
    return _FILES.source(script, used) if used else _SOURCES[script]


def sources_of(script: str) -> list[str]:
    """Returns all texts of a script: one for each set of capabilities."""
    return [source_of(script, used) for used in sets_of(CAPABILITIES)]


class EpochConnection(GreetingConnection):
    """Greets Redis with `epoch.lua`."""

    async def greet(self) -> None:
        """Checks the version of the data and notices a restart."""
        # With its source: a Redis that was started again knows no script by its hash.
        await self.send_command("EVAL", _SOURCES["epoch"], 0, SCHEMA_VERSION, OLDEST_READ, check_health=False)
        # Redis refuses the script while it takes no writes. Then no epoch is needed, and the reconciler notices.
        with suppress(ResponseError):
            found = named(await self.read_response())
            try:
                check_version(found["schema"])
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


_CLASSES: dict[type[AbstractConnection], type[EpochConnection]] = {
    TcpConnection: _Tcp,
    SSLConnection: _Tls,
    UnixDomainSocketConnection: _Unix,
}


class Connection:
    """A pool of connections to one Redis, bound to the running event loop at first use."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        """Prepares without connecting. Where `max_connections` are in use, a caller waits; scripts have their own."""
        self.url = url
        # Any: redis-py types every reply as a union of all forms; with decode_responses off ours are bytes.
        self.redis: Any = self._client(max_connections, socket_timeout=30)
        self._scripts = Scripts(self._dial, _SOURCES)
        self.idle = self._scripts.idle
        self._used: OrderedDict[str, str] = OrderedDict()
        """The names of what a batch uses, each behind a blank, in order; only of batches that use something."""

    def _client(self, max_connections: int, socket_timeout: float | None) -> Redis:
        pool = RestingPool.from_url(
            self.url,
            connection_class=_CLASSES[kind_of(self.url)],
            max_connections=max_connections,
            # Seconds that a caller waits for a free connection.
            timeout=30,
            socket_timeout=socket_timeout,
            socket_connect_timeout=5,
            health_check_interval=25,
            retry=Retry(EqualJitterBackoff(cap=0.5, base=0.05), RETRIES),
        )
        return Redis(connection_pool=pool)

    def blocking(self) -> Any:
        """Makes a client with one connection and no time limit for one blocking reader, which closes it."""
        return self._client(1, socket_timeout=None)

    async def subscribe(self, channel: str, hear: Callable[[bytes], None]) -> None:
        """Has `hear` get what is published in a channel, until this is cancelled; raises when the connection ends."""
        subscription = Subscription(channel, hear)
        with store_errors():
            try:
                kept = await self._dial(subscription)
                await subscription.run()
                del kept
            finally:
                subscription.close()

    async def _dial(self, line: asyncio.Protocol) -> object:
        """Connects a line; `Scripts` repeats where that fails."""
        connection = self.redis.connection_pool.make_connection()
        connection.retry = Retry(NoBackoff(), 0)
        return await take_over(connection, line)

    def script(self, name: str, *args: Any) -> StoreCall:
        """Runs `scripts/<name>.lua` with these ARGV; the future has its answer."""
        return self._scripts.run(name, args)

    async def of_batch(self, name: str, batch_id: str, *args: Any) -> Any:
        """Runs a script in which capabilities take part: the one that has just those which the batch uses.

        A batch is taken for a plain one until the script says that it is not; a script that is the wrong one does
        nothing else.
        """
        used = self._used.get(batch_id, "")
        while True:
            answer = await self._scripts.run(self._variant(name, used), (batch_id, *args))
            if not isinstance(answer, list) or answer[:1] != [b"capabilities"]:
                return answer
            used = self._remember(batch_id, answer[1].decode())

    async def capabilities_of(self, batch_id: str) -> list[StoredCapability]:
        """Returns the capabilities that a batch uses, in order."""
        marked = [one for one in CAPABILITIES if one.mark]
        if not marked:
            return []
        with store_errors():
            marks = await self.redis.hmget(f"{PREFIX}batch:{batch_id}", [one.mark for one in marked])
        return [one for one, mark in zip(marked, marks, strict=True) if mark not in (None, batch_id.encode())]

    def _variant(self, name: str, used: str) -> str:
        if used and not self._scripts.knows(variant := name + used):
            self._scripts.add(variant, name, source_of(name, used))
        return name + used

    def _remember(self, batch_id: str, used: str) -> str:
        self._used[batch_id] = used
        while len(self._used) > MOST_USING:
            self._used.popitem(last=False)
        return used

    def joined(self, name: str, *args: Any) -> StoreCall:
        """Runs a script as `script` does, in one with all that are joined to it in this tick (`store_call.py`)."""
        return self._scripts.join(name, args)

    def command(self, *command: Any) -> asyncio.Future[Any]:
        """Runs one command, which travels together with the scripts; raises as `script` does."""
        return self._scripts.command(*command)

    async def beside_batch(self, batch_id: str, command: str, key: str, value: str | bytes) -> None:
        """Writes a key that is deleted with a batch; takes it away again where that deletion has begun, or is over."""
        batch = keys.batch(batch_id)
        pipe = self.redis.pipeline(transaction=True)
        pipe.execute_command(command, key, value)
        pipe.exists(batch)
        pipe.hexists(batch, "deleting")
        _, exists, deleting = await pipe.execute()
        if deleting or not exists:
            await self.redis.unlink(key)

    async def close(self) -> None:
        """Closes all connections."""
        await self._scripts.close()
        await self.redis.aclose(close_connection_pool=True)


class LoneConnection:
    """One connection for one caller, which repeats nothing and tells when it was made anew.

    Its caller draws conclusions from the time at which a script ran, and from what it could not see while the
    connection was broken. Repeats and pools hide both.
    """

    def __init__(self, url: str) -> None:
        """Prepares without connecting."""
        self.connects = 0
        """How often it has connected."""
        pool = BlockingConnectionPool.from_url(
            url,
            connection_class=_CLASSES[kind_of(url)],
            max_connections=1,
            timeout=LONE_SECONDS,
            socket_timeout=LONE_SECONDS,
            socket_connect_timeout=LONE_SECONDS,
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=self._greet,
        )
        self._redis: Any = Redis(connection_pool=pool)

    async def _greet(self, connection: AbstractConnection) -> None:
        await connection.on_connect()
        self.connects += 1

    async def script(self, name: str, *args: Any) -> Any:
        """Runs `scripts/<name>.lua` with these ARGV and returns its answer; raises as `Connection.script` does."""
        source = _SOURCES[name]
        with store_errors():
            try:
                return await self._redis.evalsha(hashlib.sha1(source.encode()).hexdigest(), 0, *args)
            except NoScriptError:
                return await self._redis.eval(source, 0, *args)

    async def close(self) -> None:
        """Closes the connection."""
        await self._redis.aclose(close_connection_pool=True)
