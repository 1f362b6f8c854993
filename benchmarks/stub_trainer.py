"""A trainer that costs next to nothing, because it only looks up what to answer.

    python -m benchmarks.stub_trainer

Prints its port, then serves `/v1/chat/completions` until it is killed. What it answers is in `conversations`; a known
prefix is left out of the echo where the digest that comes with the request is that of its own ids. It checks no mask:
that each rollout was proved exact is read off the results.
"""

import asyncio
import re
import socket
from typing import cast

import uvloop
from benchmarks.conversations import conversation
from benchmarks.wire import Messages

__all__ = ["main"]

BACKLOG = 4096
_DIGEST = re.compile(rb"\r\nx-echo-prefix-digest: *([0-9a-f]+)", re.IGNORECASE)
_ID = b'"rollout_id":"'
_ASSISTANT = b'"role":"assistant"'


class Connection(asyncio.Protocol):
    """One client's connection; requests come one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._messages = Messages()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answers as soon as a request is whole."""
        message = self._messages.feed(data)
        if message is None:
            return
        delay, reply = _reply(*message)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._transport.write, reply)
        else:
            self._transport.write(reply)


def _reply(head: bytes, body: bytes) -> tuple[float, bytes]:
    """Seconds to wait, and the response."""
    start = body.rfind(_ID) + len(_ID)
    turns, variant, latency_ms, _ = body[start : body.index(b'"', start)].split(b".")
    turn = conversation(int(turns), int(variant))[body.count(_ASSISTANT)]
    digest = _DIGEST.search(head)
    return int(latency_ms) / 1000, turn.delta if digest and digest[1] == turn.digest else turn.whole


async def _serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    server = await asyncio.get_running_loop().create_server(Connection, sock=listener, backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serves until the process is killed."""
    conversation(2, 0)
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
