"""A proxy between a store and its Redis that does to answers what networks and bad proxies do.

    async with redis_proxy(redis_url) as proxy:
        proxy.manner = cuts(1000)
        await store_at(proxy.url).ping()

Commands pass as they are. What becomes of a connection's answers is its manner, a coroutine that is given them piece by
piece; one that returns ends the connection.

| manner | what the store gets |
| --- | --- |
| `passes` | all of it |
| `hangs(n)` | the first n bytes, and nothing more, on a connection that stays open |
| `cuts(n)` | the first n bytes, and the end of the connection |
| `babbles` | what is no answer, and then all of it |
| `refuses` | the end of the connection |
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

PIECE = 65_536
Manner = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def passes(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
    """Tells no lies."""
    while data := await answers.read(PIECE):
        store.write(data)
        await store.drain()


async def refuses(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
    """Ends it at once."""


def cuts(after: int) -> Manner:
    """Ends the connection after so many bytes."""

    async def manner(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
        left = after
        while left > 0 and (data := await answers.read(left)):
            store.write(data)
            await store.drain()
            left -= len(data)

    return manner


def hangs(after: int) -> Manner:
    """Sends nothing after so many bytes."""

    async def manner(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
        await cuts(after)(answers, store)
        await asyncio.Event().wait()

    return manner


async def babbles(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
    """Sends something else, and then what there is."""
    store.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await passes(answers, store)


class RedisProxy:
    """The proxy."""

    def __init__(self, target: str) -> None:
        self.manner: Callable[[int], Manner] = lambda _: passes
        """Of each connection, by its number from 0."""
        self.connections = 0
        """That were opened."""
        self.url = ""
        self._target = urlsplit(target)
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until one side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        manner, self.connections = self.manner(self.connections), self.connections + 1
        answers, commands = await asyncio.open_connection(self._target.hostname, self._target.port)
        sides = [
            asyncio.ensure_future(manner(answers, writer)),
            asyncio.ensure_future(passes(reader, commands)),
        ]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            for end in (writer, commands):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            self._open.discard(task)

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


@contextlib.asynccontextmanager
async def redis_proxy(target: str) -> AsyncIterator[RedisProxy]:
    """Serves a proxy until the block ends; `target` is the URL of a Redis without TLS."""
    proxy = RedisProxy(target)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await proxy.serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = urlsplit(target)
    login = f"{url.netloc.rpartition('@')[0]}@" if "@" in url.netloc else ""
    proxy.url = url._replace(netloc=f"{login}127.0.0.1:{port}").geturl()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
