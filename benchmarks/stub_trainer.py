"""A trainer that costs next to nothing, because it only looks up what to answer.

    python -m benchmarks.stub_trainer --tokenizer rolloutpool/tiny

Prints its port, then serves `/v1/chat/completions` until it is killed; `/answered` says how many it has answered.
Its replies are in `conversations`. It leaves the known prefix out of the echo where the request's digest is that of its
own ids. It checks no mask, because the results show whether each rollout was proved exact. A latency `500-1500` differs
from turn to turn. Peers get the same replies in other forms, by other paths (`peers.openai_form`).
"""

import argparse
import asyncio
import re
import socket
from typing import cast

import uvloop
from benchmarks.conversations import conversation
from benchmarks.load import TrainerManner
from benchmarks.peers import openai_form
from benchmarks.wire import Messages

from rolloutpool_common.rendering import TINY

BACKLOG = 4096
_DIGEST = re.compile(rb"\r\nx-echo-prefix-digest: *([0-9a-f]+)", re.IGNORECASE)
_OURS = b"POST /v1/"
_ID = b'"rollout_id":"'
_ASSISTANT = b'"role":"assistant"'


class Connection(asyncio.Protocol):
    """One client's connection. Requests come one after the other."""

    answered = 0
    """Calls of all connections."""

    def __init__(self, tokenizer: str) -> None:
        self._transport: asyncio.Transport
        self._messages = Messages()
        self._tokenizer = tokenizer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def reply(self, data: bytes) -> None:
        """Writes a response."""
        if not self._transport.is_closing():
            Connection.answered += 1
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Answers as soon as a request is whole."""
        message = self._messages.feed(data)
        if message is None:
            return
        if message[0].startswith(b"GET /answered "):
            said = str(Connection.answered).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
            return
        delay, reply = _reply(*message, self._tokenizer)
        if delay:
            asyncio.get_running_loop().call_later(delay, self.reply, reply)
        else:
            self.reply(reply)


def _reply(head: bytes, body: bytes, tokenizer: str) -> tuple[float, bytes]:
    """Returns how many seconds to wait, and the response."""
    if not head.startswith(_OURS) and (answered := openai_form.answer(head, body, tokenizer)) is not None:
        return answered
    start = body.rfind(_ID) + len(_ID)
    turns, variant, characters, latency_ms, trainer, serial = body[start : body.index(b'"', start)].split(b".")
    manner, number = TrainerManner(trainer.decode()), body.count(_ASSISTANT)
    turn = conversation(int(turns), int(variant), int(characters), tokenizer, manner)[number]
    digest = _DIGEST.search(head)
    low, _, high = latency_ms.partition(b"-")
    seconds = int(low) / 1000
    if high:
        # Two irrational steps spread rollouts and their turns evenly.
        seconds += (int(high) - int(low)) / 1000 * ((int(serial) * 0.6180339887 + number * 0.7548776662) % 1)
    return seconds, turn.delta if digest and digest[1] == turn.digest else turn.whole


async def _serve(tokenizer: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(tokenizer), sock=listener, backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serves until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", default=TINY)
    tokenizer = parser.parse_args().tokenizer
    conversation(2, 0, tokenizer_name=tokenizer)
    uvloop.run(_serve(tokenizer))


if __name__ == "__main__":
    main()
