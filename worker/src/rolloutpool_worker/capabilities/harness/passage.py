"""Passage: the one way out of a sandbox that has no network, which leads to the door.

1. The runner listens on a socket in the file system, which the sandbox has as `/run/door`. Whoever connects to it is
   connected to the door, by TLS where the door's address says so.
2. In the sandbox a small program (`way_out`) listens on 127.0.0.1, and connects to that socket. Then it becomes the
   agent's program.

    program -> 127.0.0.1:9100 -> /run/door -> runner -> https://door.example

So a program reaches neither the pool's Redis and ports, nor what the machine is told over metadata addresses, nor other
programs.
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rolloutpool_worker.capabilities.harness import way_out
from rolloutpool_worker.capabilities.harness.places import WAYS, made_place
from rolloutpool_worker.policy.certificates import verifying

PORT = 9100
"""On which the door is found in the sandbox, whose ports are its own."""
INSIDE = "/run/door"
MOST_AT_ONCE = 100
"""Connections of one program. Each takes two of the runner's descriptors, which it has for all programs together."""


@dataclass(frozen=True)
class Passage:
    """The way of one sandbox."""

    socket: Path

    @property
    def options(self) -> list[str]:
        """Returns what bubblewrap is told; behind the options that make `/run`."""
        return ["--unshare-net", "--bind", str(self.socket), INSIDE]

    @staticmethod
    def led(command: Sequence[str]) -> list[str]:
        """Returns the command that opens the way and becomes this one, whose program is named by its whole path."""
        source = Path(way_out.__file__).read_text()
        # Of the interpreter itself, because the environment's may be among what is hidden.
        return [str(Path(sys.executable).resolve()), "-I", "-S", "-c", source, INSIDE, str(PORT), *command]

    @staticmethod
    def moved(values: Mapping[str, str], door: str) -> dict[str, str]:
        """Returns a program's values with the address under which it finds the door."""
        url, before = values["url"], door.rstrip("/")
        inside = f"http://127.0.0.1:{PORT}{url.removeprefix(before)}" if url.startswith(before) else url
        return {**values, "url": inside}


@asynccontextmanager
async def opened_passage(door: str) -> AsyncIterator[Passage]:
    """Leads to a door while the block runs."""
    address = urlsplit(door)
    context: ssl.SSLContext | None = verifying() if address.scheme == "https" else None
    port = address.port or (443 if context else 80)

    led: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(address.hostname, port, ssl=context)
        except OSError:
            # As if the door were not there: programs ask again.
            writer.close()
            return
        try:
            await way_out.join((reader, writer), there)
        except asyncio.CancelledError:
            # What is left to say, and a polite end of TLS, would outlive the block.
            there[1].transport.abort()
            raise

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(led) >= MOST_AT_ONCE:
            writer.close()
            return
        task = asyncio.create_task(lead(reader, writer))
        led[task] = writer
        task.add_done_callback(led.pop)

    # Not in the runner's directory of places: the path of a socket has at most 107 bytes.
    async with made_place(WAYS, None) as folder:
        socket = folder / "door"
        server = await asyncio.start_unix_server(take, socket)
        try:
            yield Passage(socket)
        finally:
            server.close()
            # A program that is gone may leave a connection whose end has not been read yet.
            for task, writer in led.items():
                task.cancel()
                writer.transport.abort()
            await asyncio.gather(*led, return_exceptions=True)
