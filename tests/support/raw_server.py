"""A server that speaks only as a test writes, byte by byte: for replies that no HTTP library would send."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class RawServer:
    """What listens at an address."""

    host: str
    port: int
    heads: list[str] = field(default_factory=list)
    """The request heads that came."""

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://{self.host}:{self.port}"


@contextlib.asynccontextmanager
async def answering(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[RawServer]:
    """Treats its connections as it is told, and closes them."""
    handlers: set[asyncio.Task[None]] = set()

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handle(reader, writer)
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

    listening = await asyncio.start_server(until_closed, host, port, ssl=tls)
    try:
        yield RawServer(host, listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        # What was accepted a moment ago has no handler yet, but after some steps of the loop, and by TLS a handshake.
        await asyncio.sleep(0.05 if tls else 0)
        for _ in range(20):
            await asyncio.sleep(0)
        for task in handlers:
            task.cancel()
        # A connection that outlives its loop is told of in whichever test comes next.
        await asyncio.gather(*handlers)
        await listening.wait_closed()
