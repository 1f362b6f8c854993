"""A webhook in a thread of this process. It takes every push, and holds its answers back until it is opened.

So a worker can start and make as many pushes as it makes at once, and the clock runs only from there.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvloop
from benchmarks.wire import Messages

_TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"


class Webhook:
    """What has been pushed so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answered: list[tuple[float, int]] = []
        """When, on the clock of `time.perf_counter`, and the body's bytes."""
        self.connections: set[asyncio.Transport] = set()
        self._held: list[tuple[asyncio.Transport, int]] = []
        self._opened = False
        self._listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._closed: asyncio.Event

    def open(self) -> None:
        """Answers pushes at once from now on."""
        self._loop.call_soon_threadsafe(self._open)

    def take(self, transport: asyncio.Transport, size: int) -> None:
        """Notes a push; called on the webhook's own loop."""
        if self._opened:
            transport.write(_TAKEN)
            self.answered.append((time.perf_counter(), size))
        else:
            self._held.append((transport, size))

    async def serve(self, listener: socket.socket) -> None:
        """Listens until it is closed."""
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), sock=listener)
        self._listening.set()
        await self._closed.wait()
        server.close()
        for transport in list(self.connections):
            transport.abort()

    def wait(self) -> None:
        """Waits until it listens."""
        self._listening.wait()

    def close(self) -> None:
        """Closes the connections."""
        self._loop.call_soon_threadsafe(self._closed.set)

    def _open(self) -> None:
        self._opened = True
        for transport, size in self._held:
            self.take(transport, size)


class _Connection(asyncio.Protocol):
    def __init__(self, to: Webhook) -> None:
        self._webhook = to
        self._messages = Messages()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._webhook.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._webhook.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        message = self._messages.feed(data)
        if message is not None:
            self._webhook.take(self._transport, len(message[1]))


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Runs a webhook while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    hook = Webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    thread = threading.Thread(target=lambda: uvloop.run(hook.serve(listener)), name="webhook", daemon=True)
    thread.start()
    hook.wait()
    try:
        yield hook
    finally:
        hook.close()
        thread.join()
