"""The process that large bodies are read in, as the API's process sees it. `body_reader` is what runs in there.

Parsing and validating hold the interpreter's lock (GIL) for seconds where a body is large, so a thread would stop the
API's event loop as well. Another process does not (docs/decisions/0012).

1. The first question starts the process, which takes about a second. It answers one question at a time; further ones
   wait here.
2. A question is a `ForwardedRequest` or a `V1Ticket`, and the answer a `ReaderReply`. They travel as pickles over a
   pair of sockets that no other process can open, each with its length before it.
3. Bodies do not travel: with each length goes the descriptor of a `Spool`, which both processes can read.
4. `IDLE_SECONDS` after its last answer the process ends, and its memory is free again.
5. While it works, its memory is looked at every `WEIGH_SECONDS`. Above `MEMORY_FACTOR` times the largest body it is
   killed, and the request gets 413. It can't look itself, because the parser does not let any other thread run; and a
   limit of the system counts memory that is only reserved, which is up to ten times the size of the body.
6. If it ends in the middle of a question, that request alone fails. The next question starts another process.

When the API is killed, its socket closes, and the process ends by itself.
"""

import asyncio
import pickle
import resource
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from rolloutpool_api.errors import BodyTooCostly, ReaderEnded
from rolloutpool_api.settings import ApiSettings
from rolloutpool_api.spool import Spool

_log = structlog.stdlib.get_logger(__name__)

IDLE_SECONDS = 30.0
"""A trainer that submits large batches sends the next one soon."""
END_SECONDS = 5.0
MEMORY_FACTOR = 12
"""Ordinary batches take 3 to 6 times their size; one that is all empty objects would take 30 times."""
MEMORY_AT_REST = 150_000_000
"""Bytes of a process that has read nothing yet, with room to spare."""
WEIGH_SECONDS = 0.05
"""In this time the parser takes 50 MB at most."""
LENGTH_BYTES = 8
TICKET_TYPE = "application/x-v1-ticket"
"""The content type of a `V1Ticket`. `POST /rollout` has an answer with 202 too, on the Osmosis wire."""


@dataclass(frozen=True)
class ForwardedRequest:
    """A request whose body is in the spool that comes with it."""

    scope: dict[str, Any]
    """What ASGI calls the scope, without what can't be pickled."""


@dataclass(frozen=True)
class V1Ticket:
    """A rollout of protocol v1 that is submitted. As a question, it asks for the answer of one that has ended."""

    rollout_id: str
    batch_id: str
    tokenizer_name: str


@dataclass(frozen=True)
class ReaderReply:
    """The head of an HTTP response; its body is in the spool that comes with it."""

    status: int
    headers: list[tuple[bytes, bytes]]

    @property
    def is_ticket(self) -> bool:
        """Whether the body is a `V1Ticket`, whose rollout is to be waited for."""
        return (b"content-type", TICKET_TYPE.encode()) in self.headers


def frame(content: object) -> tuple[bytes, bytes]:
    """Returns length and pickle of what is sent; the descriptor goes with the length."""
    data = pickle.dumps(content)
    return len(data).to_bytes(LENGTH_BYTES, "big"), data


class BodyProcess:
    """Starts the process when it is needed, asks it, and ends it when it is idle."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ended: list[subprocess.Popen[bytes]] = []

    async def ask(self, question: ForwardedRequest | V1Ticket, body: Spool) -> tuple[ReaderReply, Spool]:
        """Asks the process, when the questions before this one are answered."""
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                answer = await self._exchange(self._started(), question, body)
            except BaseException as error:
                # After half an exchange, also one that was cancelled, nobody knows what the process would send next.
                process = self._process
                self._end()
                if process is not None:
                    process.kill()
                if isinstance(error, OSError | EOFError):
                    _log.error("the reader of large bodies ended")
                    raise ReaderEnded from None
                raise
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end)
            return answer

    def prepare(self) -> None:
        """Starts the process, where there is none, because a question will follow soon. Returns at once."""
        if not self._turn.locked():
            self._started()

    async def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._idle is not None:
            self._idle.cancel()
        self._end()
        for process in self._ended:
            try:
                await asyncio.to_thread(process.wait, END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._ended.clear()

    def _started(self) -> socket.socket:
        """Returns the socket of a process that runs, after starting it where there is none."""
        if self._socket is not None:
            return self._socket
        # The one that ended last has ended by now, so nothing is waited for.
        self._ended = [process for process in self._ended if process.poll() is None]
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rolloutpool_api.body_reader", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in a terminal reaches the API, which then ends this process in good order.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        # The settings fit into the socket's buffer, so this returns at once.
        ours.sendall(b"".join(frame(self._settings)))
        return ours

    async def _exchange(
        self, link: socket.socket, question: ForwardedRequest | V1Ticket, body: Spool
    ) -> tuple[ReaderReply, Spool]:
        loop = asyncio.get_running_loop()
        length, data = frame(question)
        # Eight bytes always fit, because everything that was sent before has been read.
        socket.send_fds(link, [length], [body.fd])
        await loop.sock_sendall(link, data)
        while not await _readable(link):
            if self._memory() > MEMORY_AT_REST + MEMORY_FACTOR * self._settings.max_body_mb * 1_000_000:
                _log.warning("a body took too much memory to read", limit_mb=MEMORY_FACTOR * self._settings.max_body_mb)
                raise BodyTooCostly
        length, fds, _, _ = socket.recv_fds(link, LENGTH_BYTES, 1)
        if not fds:
            raise EOFError
        spool = Spool(fds[0])
        try:
            data = await _receive(link, int.from_bytes(length, "big"))
        except BaseException:
            spool.close()
            raise
        reply: ReaderReply = pickle.loads(data)
        return reply, spool

    def _end(self) -> None:
        """Closes the socket, and the process ends when it has noticed."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._ended.append(self._process)
        self._socket = self._process = None

    def _memory(self) -> int:
        """Returns the process' resident bytes; 0 where the system does not tell, or the process has ended."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1] if self._process else 0
        except OSError:
            return 0
        return int(pages) * resource.getpagesize()


async def _readable(link: socket.socket) -> bool:
    """Waits until there is something to read, for `WEIGH_SECONDS` at most; tells whether there is."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(link, ready.set)
    try:
        async with asyncio.timeout(WEIGH_SECONDS):
            return await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(link)


async def _receive(link: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        piece = await loop.sock_recv(link, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
