"""A proxy that mangles answers, between a worker and any server that speaks HTTP: a trainer, an engine, a webhook.

    async with lying_proxy(trainer.url, Repeats(0.03)) as proxy:
        result = await inside.run_one(server_url=proxy.url)

It keeps the worker's connections open, as proxies do, and asks the server by a connection of its own for each request.
What it does with an answer is its `Manner`, and may be changed while it runs:

| manner | what the worker gets |
| --- | --- |
| `Manner()` | the answers, each once, to their requests |
| `Repeats(seconds)` | each answer, and once more so much later: on an idle connection, or to another request |
| `Repeats(seconds, idle=True)` | the same, but never to another request: only while the connection is idle |
| `Delays(seconds)` | each answer so much later than the server gave it |
| `Swaps(patience)` | of two requests that are under way at the same time, each the other's answer |
| `Cuts()` | the beginning of an answer, then the end of the connection |
| `Prepends()` | an older answer after the request, and then the right one |
| `Opens()` | an older answer as soon as the connection is open |
| `Halves()` | as `Repeats`, but half of the answer before the next request, and the rest after it |
| `Mixed(manners, share)` | so much of the answers by one of these manners, drawn by lot; the rest as they are |

Only answers to POST are mangled, as these are data; all others pass. What is mangled comes from answers of the same
server, so that nothing looks wrong but whose answer it is.
"""

import asyncio
import contextlib
import random
import select
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import httpx
from tests.support.inside_api import NO_TLS
from tests.support.raw_server import answering

PAST = 256
"""Answers that are remembered, to be given again."""
HOP_BY_HOP = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


class ProxyLine:
    """One connection of a worker."""

    def __init__(self, proxy: "LyingProxy", writer: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.kept = b""
        """What a manner still has to send by this connection."""
        self.is_asking = False
        """Whether a request by it has no answer yet."""
        self._writer = writer

    @property
    def is_idle(self) -> bool:
        """Whether the worker has sent nothing that is not answered, be it in the kernel still."""
        if self.is_asking or self._writer.is_closing():
            return False
        kernel = select.poll()
        kernel.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not kernel.poll(0)

    async def write(self, data: bytes) -> None:
        """Sends bytes, unless the worker has hung up."""
        if not self._writer.is_closing():
            self._writer.write(data)
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def close(self) -> None:
        """Hangs up when all is sent."""
        self._writer.close()


class Manner:
    """What a proxy does with answers: here nothing. Others override what they do otherwise."""

    async def open(self, line: ProxyLine) -> None:
        """A worker has opened a connection."""

    async def ask(self, line: ProxyLine) -> None:
        """A request has come; the server has not been asked yet."""

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """The server has answered: head and body."""
        await line.write(answer)


class Repeats(Manner):
    """Gives each answer once more, after a while."""

    def __init__(self, seconds: float, *, idle: bool = False) -> None:
        """`idle` is whether it does so only while the connection has no request."""
        self.seconds, self.idle = seconds, idle
        self.repeated = 0
        """How often it did."""

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives it, and once more later."""
        await line.write(answer)

        async def again() -> None:
            await asyncio.sleep(self.seconds)
            if line.is_idle or not self.idle:
                self.repeated += 1
                await line.write(answer)

        line.proxy.later(again())


class Delays(Manner):
    """Gives answers late."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives it after a while."""
        await asyncio.sleep(self.seconds)
        await line.write(answer)


class Swaps(Manner):
    """Exchanges the answers to two requests that are under way at the same time."""

    def __init__(self, patience: float = 0.2) -> None:
        """`patience` is how many seconds an answer waits for another one."""
        self.patience = patience
        self.swapped = 0
        """Answers that went to the wrong request."""
        self._first: tuple[bytes, asyncio.Future[bytes]] | None = None

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives the other's answer, or this one where there is no other."""
        if self._first is not None:
            theirs, waiting = self._first
            self._first = None
            waiting.set_result(answer)
            self.swapped += 2
            return await line.write(theirs)
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._first = answer, mine
        await asyncio.wait((mine,), timeout=self.patience)
        if not mine.done():
            self._first = None
        await line.write(mine.result() if mine.done() else answer)


class Cuts(Manner):
    """Breaks off within an answer."""

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives the beginning and hangs up."""
        await line.write(answer[: int(len(answer) * line.proxy.random.random())])
        line.close()


class Prepends(Manner):
    """Gives an older answer to each request, and then the right one."""

    async def ask(self, line: ProxyLine) -> None:
        """Gives the older one."""
        await line.write(line.proxy.past_answer())


class Opens(Manner):
    """Speaks first."""

    async def open(self, line: ProxyLine) -> None:
        """Gives an older answer."""
        await line.write(line.proxy.past_answer())


class Halves(Manner):
    """Gives half of each answer again before the next request, and the other half after it."""

    async def ask(self, line: ProxyLine) -> None:
        """Gives the second half of what was begun."""
        kept, line.kept = line.kept, b""
        await line.write(kept)

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives it, and half of it again."""
        await line.write(answer)
        half = answer.index(b"\r\n\r\n") + 4 + len(answer.partition(b"\r\n\r\n")[2]) // 2
        line.kept = answer[half:]

        async def begin() -> None:
            await asyncio.sleep(0.001)
            await line.write(answer[:half])

        line.proxy.later(begin())


class Mixed(Manner):
    """Treats each connection and each answer by another manner, drawn by lot."""

    def __init__(self, manners: Sequence[Manner], share: float = 1.0) -> None:
        """`share` is how many of the answers are mangled, from 0 to 1."""
        self.manners, self.share = manners, share
        self._drawn: dict[ProxyLine, Manner] = {}

    def _draw(self, line: ProxyLine) -> Manner:
        lots = line.proxy.random
        return lots.choice(self.manners) if lots.random() < self.share else Manner()

    async def open(self, line: ProxyLine) -> None:
        """As a manner that is drawn."""
        await self._draw(line).open(line)

    async def ask(self, line: ProxyLine) -> None:
        """As the manner that is drawn for this request."""
        self._drawn[line] = self._draw(line)
        await self._drawn[line].ask(line)

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """As the same one."""
        await self._drawn.pop(line).answer(line, answer)


class LyingProxy:
    """The proxy, and what it knows of its worker and its server."""

    def __init__(self, target: str, manner: Manner) -> None:
        self.url = ""
        self.target = target
        self.manner = manner
        self.random = random.Random(1)
        self.connections = 0
        """That workers have opened."""
        self.past: deque[bytes] = deque(maxlen=PAST)
        """Answers to POST, the latest last."""
        self._later: set[asyncio.Task[None]] = set()
        self._upstream = httpx.AsyncClient(
            trust_env=False,
            timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            verify=NO_TLS,
        )

    def past_answer(self) -> bytes:
        """An answer that was given before; empty before there is one."""
        return self.past[-1] if self.past else b""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something while other requests come."""
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def settle(self) -> None:
        """Returns when nothing is left that will be sent by itself."""
        while self._later:
            await asyncio.wait(self._later)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until the worker hangs up."""
        self.connections += 1
        line = ProxyLine(self, writer)
        await self.manner.open(line)
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in head[1:-2])]
            line.is_asking = True
            length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
            content = await reader.readexactly(length)
            manner = self.manner if method == "POST" else Manner()
            await manner.ask(line)
            try:
                answer = await self._asked(method, path, headers, content)
            except httpx.HTTPError:
                # The server hung up, so the worker is to see the same.
                return
            line.is_asking = False
            await manner.answer(line, answer)
            if method == "POST":
                self.past.append(answer)

    async def _asked(self, method: str, path: str, headers: list[tuple[str, str]], content: bytes) -> bytes:
        passed = [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]
        request = httpx.Request(method, self.target + path, headers=passed, content=content)
        response = await self._upstream.send(request, stream=True)
        async with contextlib.aclosing(response):
            body = b"".join([part async for part in response.aiter_raw()])
        lines = [f"HTTP/1.1 {response.status_code} {response.reason_phrase or 'X'}"]
        lines += [
            f"{name.decode('latin-1')}: {value.decode('latin-1')}"
            for name, value in response.headers.raw
            if name.decode("latin-1").lower() not in HOP_BY_HOP
        ]
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body

    async def close(self) -> None:
        """Ends what is still to be sent, and the connections to the server."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        await self._upstream.aclose()


@contextlib.asynccontextmanager
async def lying_proxy(target: str, manner: Manner) -> AsyncIterator[LyingProxy]:
    """Serves a proxy for a server, `http://host:port`, until the block ends."""
    proxy = LyingProxy(target, manner)
    try:
        async with answering(proxy.serve) as served:
            proxy.url = served.url
            yield proxy
    finally:
        await proxy.close()
