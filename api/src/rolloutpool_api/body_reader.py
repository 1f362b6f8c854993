"""`python -m rolloutpool_api.body_reader FD`: reads large bodies for an API process (see `body_process`).

It runs the API's own application without its middleware, so that a large body is parsed, validated and stored by the
same code as a small one, and gets the same answer. Two things differ:

1. It publishes nothing: the API's process does that when it has the answer.
2. `POST /rollout` returns a ticket as soon as the rollout is submitted, because the next body need not wait for the
   rollout's end. The API's process waits, and asks for the answer with the ticket.
"""

import asyncio
import os
import pickle
import socket
import sys
from typing import Any

import uvloop
from starlette.types import ASGIApp, Message

from rolloutpool_api import synchronous
from rolloutpool_api.app import create_reader_app
from rolloutpool_api.body_process import LENGTH_BYTES, ForwardedRequest, ReaderReply, V1Ticket, frame
from rolloutpool_api.services import ApiServices
from rolloutpool_api.settings import ApiSettings
from rolloutpool_api.spool import Spool
from rolloutpool_common.process.garbage import collect_rarely


class _ReaderServices(ApiServices):
    """Services of a process that only takes requests in."""

    def publish_soon(self) -> None:
        """Leaves that to the API's process, which sees the answer at once."""


async def answer_request(app: ASGIApp, scope: dict[str, Any], spool: Spool) -> tuple[ReaderReply, bytes]:
    """Runs the application for one request whose body is complete."""
    messages: list[Message] = [{"type": "http.request", "body": spool.read(), "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        # Popped, so that only the application keeps the body.
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        # The application has answered 500 and logged it; Starlette raises it again for a server to see.
        if not sent:
            raise
    start, *rest = sent
    return ReaderReply(start["status"], list(start["headers"])), b"".join(part.get("body", b"") for part in rest)


async def _answer(app: ASGIApp, services: ApiServices, question: object, spool: Spool) -> tuple[ReaderReply, bytes]:
    match question:
        case ForwardedRequest(scope):
            return await answer_request(app, scope, spool)
        case V1Ticket():
            response = await synchronous.answer_ticket(services, question)
            return ReaderReply(response.status_code, response.raw_headers), bytes(response.body)
    raise TypeError(f"no question: {type(question).__name__}")


def _receive(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def main() -> int:
    """Answers questions until the API's process closes its socket."""
    # Where cores are short, the API's own process goes first.
    os.nice(5)
    link = socket.socket(fileno=int(sys.argv[1]))
    settings: ApiSettings = pickle.loads(_receive(link, int.from_bytes(_receive(link, LENGTH_BYTES), "big")))
    settings.start_logging()
    collect_rarely()
    services = _ReaderServices(settings)
    app = create_reader_app(services)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while True:
            length, fds, _, _ = socket.recv_fds(link, LENGTH_BYTES, 1)
            if not fds:
                break
            question = pickle.loads(_receive(link, int.from_bytes(length, "big")))
            with Spool(fds[0]) as body:
                reply, content = runner.run(_answer(app, services, question, body))
            with Spool.make() as spool:
                spool.write(content)
                length, data = frame(reply)
                socket.send_fds(link, [length], [spool.fd])
                link.sendall(data)
            del question, content
        runner.run(services.store.close())
    return 0


if __name__ == "__main__":
    sys.exit(main())
