"""The language of a scripted trainer: what it does with one request, as one value or one call.

| step | what the worker gets |
|---|---|
| `say("It is 38.")` | a right reply; `calls`, `tokens`, `finish` … shape the turn, other keywords break the reply |
| `reply(ids, prompt, message)` | exactly these tokens, and 422 for any other mask than `mask` |
| `status(503)` | this status |
| `body(b"<html>")` | 200 with these bytes |
| `raw(b"SSH-2.0")` | these bytes in the place of HTTP, then the end of the connection |
| `lost(say("8"))` | nothing, though the turn was sampled |
| `close()` | the end of the connection, at once |
| `hang()` | nothing, for as long as the worker waits |
| `wait(event)` | nothing yet: the same request goes on with the next step as soon as the event is set |

A test may also write a step of its own: any coroutine function of an `Exchange`.
"""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from rolloutpool_trainer.endpoint.app import CallbackApp

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>'
"""A call as the template writes it."""
ADD_COMPACT = '<tool_call>\n{"name":"add","arguments":{"a":15,"b":23}}\n</tool_call>'
"""The same call with other ids: a trainer that renders the history again writes it with spaces."""

_numbers = itertools.count()


class Endpoint(Protocol):
    """What answers a request rightly."""

    async def __call__(self, exchange: "Exchange", turn: "Say | None") -> None:
        """Fills in the reply, sampling `turn` unless the request's turn was sampled before."""


@dataclass
class Exchange:
    """One request, and the reply to it as far as there is one."""

    method: str
    path: str
    headers: dict[str, str]
    """Of the request; names in lower case."""
    content: bytes
    """The request's body."""
    writer: asyncio.StreamWriter
    endpoint: Endpoint
    app: CallbackApp
    """The endpoint's app, to look at its sessions."""
    status: int = 0
    """Of the reply; 0 until there is one."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    """The reply's body."""

    @property
    def uid(self) -> str:
        """The rollout that asks, or whose result is pushed."""
        return self.headers.get("idempotency-key", "").partition("/")[0] or self.headers.get("webhook-id", "")

    @property
    def key(self) -> str:
        """The Idempotency-Key without the uid: `2`, or `2/2` for the second mask of turn 2."""
        return self.headers["idempotency-key"].partition("/")[2]

    @property
    def turn(self) -> int:
        """From 1; 0 for a request that asks for no turn."""
        return int(self.headers.get("idempotency-key", "/0").split("/")[1])

    @property
    def document(self) -> dict[str, Any]:
        """The request's body, parsed."""
        parsed: dict[str, Any] = orjson.loads(self.content)
        return parsed

    @property
    def mask(self) -> int | None:
        """Length of the request's mask."""
        mask = self.document["response_mask"]
        return None if mask is None else len(mask)

    @property
    def reply(self) -> dict[str, Any]:
        """The reply's body, parsed."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed

    def header(self, name: str) -> str | None:
        """A header of the request."""
        return self.headers.get(name)

    def patch(self, **changes: Any) -> None:
        """Sets keys of the reply; a change to `...` takes the key out."""
        self.body = orjson.dumps({key: value for key, value in {**self.reply, **changes}.items() if value is not ...})

    async def send(self) -> None:
        """Sends the reply, the last one on its connection."""
        headers = {**self.reply_headers, "content-length": str(len(self.body)), "connection": "close"}
        lines = [f"HTTP/1.1 {self.status} X", *(f"{name}: {value}" for name, value in headers.items())]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + self.body)

    async def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()


Step = Callable[[Exchange], Awaitable[None]]
"""Answers a request."""
Scripts = Mapping[str, Sequence[Step]]
"""Scripts by rollout id or by the content of the first message."""
Change = Callable[[Exchange], None]
"""Changes a reply before it is sent."""


@dataclass(frozen=True)
class Say:
    """A turn that the policy samples. Make it with `say`."""

    text: str
    calls: Sequence[dict[str, Any]]
    finish: Literal["stop", "length"]
    stop: bool
    tokens: int | None
    logprob: float
    version: str | None
    change: Change | None
    patch: dict[str, Any]
    sent: bool = True

    async def __call__(self, exchange: Exchange) -> None:
        """Has the endpoint answer, breaks the reply as the test wants it, and sends it."""
        await exchange.endpoint(exchange, self)
        if exchange.status == 200:
            if self.patch:
                exchange.patch(**self.patch)
            if self.change:
                self.change(exchange)
        if self.sent:
            await exchange.send()


def say(
    text: str = "It is 38.",
    calls: Sequence[dict[str, Any]] = (),
    *,
    finish: Literal["stop", "length"] = "stop",
    stop: bool | None = None,
    tokens: int | None = None,
    logprob: float = -0.5,
    version: str | None = None,
    change: Change | None = None,
    **patch: Any,
) -> Say:
    """The policy samples a turn, and the reply is right for the request's rollout, unless the test breaks it.

    Args:
        text: What is said. Calls in it are parsed, unless `calls` or `tokens` are given.
        calls: Tool calls of the message, whatever the text says; see `call`.
        finish: How sampling ended.
        stop: Whether the close token is sampled; by default where `finish` is "stop" and `tokens` is not given.
        tokens: Sample exactly so many tokens, whatever the text has.
        logprob: Log-probability of each token.
        version: The policy's version.
        change: Changes the reply before it is sent.
        patch: Keys of the reply to set; `...` takes one out.
    """
    stop = (finish == "stop" and tokens is None) if stop is None else stop
    return Say(text, tuple(calls), finish, stop, tokens, logprob, version, change, patch)


def call(name: str, arguments: Any = "{}", call_id: str | None = None) -> dict[str, Any]:
    """A tool call with these arguments, as text or as an object."""
    return {
        "id": call_id or f"call_{next(_numbers)}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def reply(
    ids: Sequence[int],
    *,
    prompt: Sequence[int],
    message: dict[str, Any],
    mask: int | None = None,
    strict: bool = True,
) -> Step:
    """A turn of exactly these tokens; no endpoint is asked.

    Args:
        ids: What was sampled.
        prompt: What the policy saw.
        message: What was parsed from it.
        mask: Length of the mask that a strict trainer takes, 0 for none. A negative length is refused always, as no
            mask can say it.
        strict: Whether another mask is refused with 422.
    """

    async def step(exchange: Exchange) -> None:
        expected = mask or 0
        if strict and (expected < 0 or exchange.document["response_mask"] != ([0] * expected or None)):
            exchange.status, exchange.body = 422, orjson.dumps({"error": {"expected": expected}})
        else:
            document = {
                "id": "c",
                "created": 1,
                "choices": [{"message": message, "finish_reason": "stop"}],
                "token_ids": list(ids),
                "logprobs": [-0.25] * len(ids),
                "prompt_token_ids": list(prompt),
            }
            exchange.status, exchange.body = 200, orjson.dumps(document)
        await exchange.send()

    return step


def status(code: int, **headers: str) -> Step:
    """A reply with this status and an error in its body; in names of headers `_` stands for `-`."""
    return _answer(code, b"" if code == 204 else b'{"error": {"type": "x"}}', headers)


def body(content: bytes) -> Step:
    """A reply with status 200 and these bytes."""
    return _answer(200, content, {})


def _answer(code: int, content: bytes, headers: dict[str, str]) -> Step:

    async def step(exchange: Exchange) -> None:
        exchange.status, exchange.body = code, content
        exchange.reply_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.send()

    return step


def raw(data: bytes) -> Step:
    """These bytes, then the end of the connection."""

    async def step(exchange: Exchange) -> None:
        await exchange.raw(data)

    return step


def lost(turn: Say) -> Step:
    """The turn is sampled, and the connection ends in the middle of the reply."""

    async def step(exchange: Exchange) -> None:
        await Say(**{**vars(turn), "sent": False})(exchange)
        await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(exchange.body) + exchange.body[:-10])

    return step


def close() -> Step:
    """The end of the connection."""

    async def step(_: Exchange) -> None:
        return

    return step


def hang() -> Step:
    """No answer, for as long as the worker waits."""

    async def step(_: Exchange) -> None:
        await asyncio.Event().wait()

    return step


@dataclass(frozen=True)
class Wait:
    """Until the event is set. Make it with `wait`."""

    event: asyncio.Event | threading.Event

    async def __call__(self, _: Exchange) -> None:
        """Returns when the event is set."""
        if isinstance(self.event, asyncio.Event):
            await self.event.wait()
            return
        # In short pieces: a thread that waits for ever would keep the process from ending.
        while not await asyncio.to_thread(self.event.wait, 0.1):
            pass


def wait(event: asyncio.Event | threading.Event) -> Wait:
    """Until the event is set; then the same request goes on with the next step. All requests wait until then."""
    return Wait(event)
