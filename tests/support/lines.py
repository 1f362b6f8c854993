"""`callback_app` around a policy whose turns a test writes down, and a tap on what goes over the wire."""

import contextlib
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from starlette.types import Message, Receive, Scope, Send

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback

__all__ = ["ADD", "ADD_COMPACT", "Exchange", "Line", "Lines", "Tap", "Tapped", "tapped_trainer"]

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>'
ADD_COMPACT = '<tool_call>\n{"name":"add","arguments":{"a":15,"b":23}}\n</tool_call>'
"""A trainer that renders this again writes it with spaces."""
TELLING = frozenset({"x-keeps-token-ids", "x-tokenizer-fingerprint"})
"""Headers by which a trainer says what it is."""


@dataclass(frozen=True)
class Line:
    """One sampled turn."""

    text: str = "It is 38."
    stop: bool = True
    """Whether the close token is sampled."""
    finish: Literal["stop", "length"] = "stop"
    logprob: float = -0.5
    version: str | None = None


@dataclass(frozen=True)
class Lines:
    """A `generate` that says these turns, the last one again and again."""

    tokenizer: ChatTokenizer
    lines: Sequence[Line]

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """The turn that is asked for."""
        line = self.lines[min(params.turn, len(self.lines)) - 1]
        ids = self.tokenizer.encode(line.text)
        if line.stop and self.tokenizer.close_id is not None:
            ids.append(self.tokenizer.close_id)
        return Generation(
            token_ids=ids,
            logprobs=[line.logprob] * len(ids),
            finish_reason=line.finish,
            policy_version=line.version,
        )


@dataclass
class Exchange:
    """One request and its reply."""

    headers: dict[str, str]
    """Names in lower case."""
    document: dict[str, Any]
    status: int = 0
    reply_headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def key(self) -> str:
        """The Idempotency-Key without the uid."""
        return self.headers["idempotency-key"].partition("/")[2]

    @property
    def mask(self) -> int | None:
        """Length of the mask."""
        mask = self.document["response_mask"]
        return None if mask is None else len(mask)

    @property
    def reply(self) -> dict[str, Any]:
        """The reply's body."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed


class Tap:
    """An ASGI app around another: keeps what passes, takes out headers and keys, or changes a reply."""

    def __init__(self, app: CallbackApp, *, without: Collection[str] = (), echoes: bool = True) -> None:
        self.app = app
        self.without = frozenset(without)
        self.echoes = echoes
        self.exchanges: list[Exchange] = []

    def refuses(self, exchange: Exchange) -> int | None:
        """For subclasses: a status to answer with, before the app hears of the request."""
        del exchange
        return None

    def change(self, exchange: Exchange) -> None:
        """For subclasses: may change headers and body of a reply."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parts: list[bytes] = []
        message: MutableMapping[str, Any] = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
        data = b"".join(parts)
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = Exchange(headers, orjson.loads(data))

        async def replay() -> Message:
            return {"type": "http.request", "body": data, "more_body": False}

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.reply_headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                exchange.body += message.get("body", b"")

        if refusal := self.refuses(exchange):
            exchange.status, exchange.body = refusal, b"{}"
        else:
            await self.app(scope, replay, keep)
        if exchange.status == 200:
            for name in self.without:
                exchange.reply_headers.pop(name, None)
            if not self.echoes:
                exchange.body = orjson.dumps({k: v for k, v in exchange.reply.items() if k != "prompt_token_ids"})
            self.change(exchange)
        exchange.reply_headers["content-length"] = str(len(exchange.body))
        self.exchanges.append(exchange)
        pairs = [(name.encode(), value.encode()) for name, value in exchange.reply_headers.items()]
        await send({"type": "http.response.start", "status": exchange.status, "headers": pairs})
        await send({"type": "http.response.body", "body": exchange.body})


@dataclass(frozen=True)
class Tapped:
    """A running trainer."""

    url: str
    app: CallbackApp
    tap: Tap

    @property
    def exchanges(self) -> list[Exchange]:
        """All that it was asked, in order."""
        return self.tap.exchanges

    @property
    def posts(self) -> list[tuple[str, int | None, int]]:
        """Key, length of the mask, and status of each."""
        return [(exchange.key, exchange.mask, exchange.status) for exchange in self.exchanges]


@contextlib.contextmanager
def tapped_trainer(
    tokenizer: ChatTokenizer,
    *lines: Line,
    tap: type[Tap] = Tap,
    tells: bool = True,
    echoes: bool = True,
    **options: Any,
) -> Iterator[Tapped]:
    """Serves `callback_app` with these turns; `tells`: whether its replies say of which kind it is."""
    app = callback_app(Lines(tokenizer, lines), tokenizer=tokenizer, **options)
    wrapped = tap(app, without=() if tells else TELLING, echoes=echoes)
    with serve_callback(wrapped, [0]) as served:
        yield Tapped(served.url, app, wrapped)
