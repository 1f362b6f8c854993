"""A trainer endpoint on a real socket that does to each request what the test says, well-formed HTTP or not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from rolloutpool_common.rendering import ChatTokenizer

__all__ = ["Answer", "BadTrainer", "Received", "bad_trainer", "completion", "raw", "send"]


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: list[tuple[str, str]]
    """Names in lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return dict(self.headers).get(name)

    @property
    def uid(self) -> str:
        """The rollout that asks."""
        return (self.header("idempotency-key") or "").rpartition("/")[0]

    @property
    def turn(self) -> int:
        """The turn that is asked for."""
        return int((self.header("idempotency-key") or "").rpartition("/")[2])

    @property
    def document(self) -> dict[str, Any]:
        """The body."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class BadTrainer:
    """A running endpoint."""

    url: str
    requests: list[Received] = field(default_factory=list)

    def of(self, uid: str) -> list[Received]:
        """What one rollout asked, in order."""
        return [request for request in self.requests if request.uid == uid]


async def send(
    writer: asyncio.StreamWriter, status: int, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> None:
    """A whole response, the last on its connection."""
    fixed = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close")
    lines = [*fixed, *(f"{name}: {value}" for name, value in headers)]
    await raw(writer, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)


async def raw(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Bytes as they are."""
    writer.write(data)
    await writer.drain()


def completion(tokenizer: ChatTokenizer, request: Received, text: str = "8", **changes: Any) -> dict[str, Any]:
    """A reply that is right for turn 1, with these changes; a change to `...` takes the key out."""
    ids = [*tokenizer.encode(text), *([] if tokenizer.close_id is None else [tokenizer.close_id])]
    reply = {
        "id": "c",
        "created": 1,
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "token_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "prompt_token_ids": tokenizer.render_prompt(request.document["messages"]),
    }
    return {key: value for key, value in {**reply, **changes}.items() if value is not ...}


@contextlib.asynccontextmanager
async def bad_trainer(answer: Answer) -> AsyncIterator[BadTrainer]:
    """Serves until the block ends; a connection is closed when `answer` returns."""
    handlers: set[asyncio.Task[None]] = set()
    trainer = BadTrainer("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head[1:-2])]
            body = await reader.readexactly(int(dict(headers).get("content-length", 0)))
            request = Received(headers, body)
            trainer.requests.append(request)
            await answer(request, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever asked has gone away, or the test is over
        finally:
            handlers.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    trainer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield trainer
    finally:
        server.close()
        # What was accepted a moment ago has no handler yet, and would outlive the loop: a warning in a later test.
        await asyncio.sleep(0.05)
        for task in tuple(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()
