"""A TCP way from a port of its own to a server, which can be cut, held, delayed, half-closed and refused.

What is held is not lost: it flows when the link is let go, unless the connection is cut before. The end of a connection
is held too, as where packets are dropped. A link that is left alone changes nothing.
"""

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import suppress

LOOPBACK = "127.0.0.1"


class Link:
    """One way; every connection through it suffers alike."""

    def __init__(
        self,
        name: str,
        target: int,
        on_connect: Callable[[int, int], None] | None = None,
        *,
        server: str = LOOPBACK,
        listens: str = LOOPBACK,
    ) -> None:
        """To a port of `server`. `on_connect(client's port, the link's own port towards the server)`."""
        self.name = name
        self.delay = 0.0
        """Seconds that each piece waits."""
        self.repeats: float | None = None
        """Seconds after which each piece of the server's comes a second time; None: never."""
        self.refuses = False
        """Whether new connections are reset at once."""
        self.port = 0
        self._target = target
        self._on_connect = on_connect
        self._addresses = server, listens
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._far_ports: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def owns(self, port: int) -> bool:
        """Whether a connection of this link reaches the server from this port."""
        return port in self._far_ports

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._accept, self._addresses[1], 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends all connections and listens no more."""
        if self._server is not None:
            self._server.close()
        self.let_go()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Nothing passes in either direction, and nobody is told."""
        self._open.clear()

    def let_go(self) -> None:
        """What was held flows."""
        self._open.set()

    def half_close(self) -> None:
        """Tells one end of each connection, at random, that the other has finished sending."""
        for writer in tuple(self._writers):
            if random.random() < 0.5 and writer.can_write_eof():
                with suppress(OSError, RuntimeError):
                    writer.write_eof()

    def heal(self) -> None:
        """As if nothing had ever been wrong with it."""
        self.refuses, self.delay, self.repeats = False, 0.0, None
        self.let_go()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        far, far_port = None, 0
        try:
            if self.refuses:
                return
            far_reader, far = await asyncio.open_connection(self._addresses[0], self._target)
            self._writers.add(far)
            far_port = far.get_extra_info("sockname")[1]
            self._far_ports.add(far_port)
            if self._on_connect is not None:
                self._on_connect(writer.get_extra_info("peername")[1], far_port)
            await asyncio.gather(self._pass(reader, far), self._pass(far_reader, writer, answers=True))
        except (OSError, RuntimeError, asyncio.CancelledError):
            # RuntimeError: something came for an end that was half-closed.
            pass
        finally:
            self._tasks.discard(task)
            self._far_ports.discard(far_port)
            for end in (writer, far):
                if end is not None:
                    self._writers.discard(end)
                    _reset(end)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
                if answers and self.repeats is not None:
                    asyncio.get_running_loop().call_later(self.repeats, _write_again, writer, data)
        finally:
            # While the link is held, the end of a connection must not show on the other side either.
            await self._open.wait()
        with suppress(OSError, RuntimeError):
            writer.write_eof()


def _write_again(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(OSError, RuntimeError):
        if not writer.is_closing():
            writer.write(data)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection so that the other side notices: a server that is away does not close, it resets."""
    raw = writer.get_extra_info("socket")
    if raw is not None and not writer.is_closing():
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()
