"""A webhook in a thread of this process that takes every push, and holds back its answers until it is opened.

So a worker can start, reach it with as many pushes as it makes at once, and be timed from there.
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

__all__ = ["Webhook", "webhook"]

_TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"


class Webhook:
    """What has been pushed."""

    def __init__(self) -> None:
        self.url = ""
        self.answered: list[tuple[float, int]] = []
        """When, on the clock of `time.perf_counter`, and the body's bytes."""
        self.loop = uvloop.new_event_loop()
        """On which it runs."""
        self._held: list[tuple[asyncio.Transport, int]] = []
        self._opened = False

    def open(self) -> None:
        """From now on pushes are answered at once."""
        self.loop.call_soon_threadsafe(self._open)

    def take(self, transport: asyncio.Transport, size: int) -> None:
        """A push has come; on the webhook's own loop."""
        if self._opened:
            transport.write(_TAKEN)
            self.answered.append((time.perf_counter(), size))
        else:
            self._held.append((transport, size))

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

    def data_received(self, data: bytes) -> None:
        message = self._messages.feed(data)
        if message is not None:
            self._webhook.take(self._transport, len(message[1]))


@contextmanager
def webhook() -> Iterator[Webhook]:
    """One that listens until the block ends."""
    hook = Webhook()
    loop = hook.loop
    listener = socket.create_server(("127.0.0.1", 0))
    loop.run_until_complete(loop.create_server(lambda: _Connection(hook), sock=listener))
    hook.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    thread = threading.Thread(target=loop.run_forever, name="webhook", daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
