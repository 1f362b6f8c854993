"""The stub trainer, which also counts the bytes that it is sent; `GET /counted` answers with their number.

    python -m benchmarks.pair_trainer

Both sides of a pair ask the same process, so both get the same replies to the byte.
"""

import asyncio
import socket

import uvloop
from benchmarks.conversations import conversation
from benchmarks.stub_trainer import BACKLOG, Connection

from rolloutpool_common.rendering import TINY

_QUESTION = b"GET /counted "


class CountingConnection(Connection):
    """A connection whose bytes are added to those of all others."""

    counted = 0

    def data_received(self, data: bytes) -> None:
        """Counts, and answers as the stub trainer does."""
        if data.startswith(_QUESTION):
            number = str(CountingConnection.counted).encode()
            self.reply(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(number), number))
            return
        CountingConnection.counted += len(data)
        super().data_received(data)


async def _serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CountingConnection(TINY), sock=listener, backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serves until the process is killed."""
    conversation(2, 0)
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
