"""A trainer that plays a script on a real socket, so that a test reads as a conversation.

    async with scripted_trainer(tokenizer, say(ADD), status(503), say("8")) as trainer:
        result = await inside.run_one(server_url=trainer.url)
        assert [exchange.turn for exchange in trainer.of(result.uid)] == [1, 2, 2]

How a script is played:

1. Each rollout plays the script from its beginning. Rollouts that are named in `scripts`, by rollout id or by their
   first message's content, play another one.
2. A request takes the next step (see `tests.support.trainer_script`); the last step is played again and again.
3. `say` asks the endpoint that users get, `callback_app`, with a policy that samples the step's turn. So sessions,
   prompts, masks and what a repeated request gets are the product's own, and `trainer.app` knows the right samples.
4. A reply of 422 (another mask was expected) does not use up its step. A request for a turn that was sampled already
   takes no step: the endpoint answers it as before.

What is not this, and why: `rolloutpool_trainer.testing.ScriptedPolicy` is public and calculates, it has no script; the
chaos campaign's trainer is a process that remembers its sessions over kill -9; the benchmarks' stub answers without a
tokenizer, as it must cost next to nothing.
"""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from starlette.types import Message as AsgiMessage
from tests.support.raw_server import answering
from tests.support.trainer_script import Change, Exchange, Say, Scripts, Step, Wait

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENT
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.parsing import parse_tool_calls
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

TELLING = frozenset({"x-keeps-token-ids", "x-tokenizer-fingerprint"})
"""Headers by which a trainer says of which kind it is."""
ANNOUNCING = frozenset({HEADER_IDEMPOTENT.lower()})
"""The header by which it says that it may be asked again."""
_turn: ContextVar[Say | None] = ContextVar("turn", default=None)
"""What the policy is to sample for the request that is being answered."""


class ScriptedTrainer:
    """The trainer, and all that it was asked."""

    def __init__(
        self,
        app: CallbackApp,
        script: Sequence[Step],
        scripts: Scripts,
        hides: Collection[str],
        change: Change | None,
    ) -> None:
        self.app = app
        """The endpoint that answers `say`; its sessions are what results are compared with."""
        self.url = ""
        self.exchanges: list[Exchange] = []
        """All requests for turns with their replies, in order."""
        self.health_checks = 0
        """How often it was asked for its health."""
        self._script, self._scripts = script, scripts
        self._hides, self._change = frozenset(hides), change
        self._places: defaultdict[str, int] = defaultdict(int)
        self._said: set[tuple[str, int]] = set()

    def of(self, uid: str) -> list[Exchange]:
        """What one rollout asked, in order."""
        return [exchange for exchange in self.exchanges if exchange.uid == uid]

    @property
    def posts(self) -> list[tuple[str, int | None, int]]:
        """Key without uid, length of the mask, and status of each exchange."""
        return [(exchange.key, exchange.mask, exchange.status) for exchange in self.exchanges]

    async def play(self, exchange: Exchange) -> None:
        """Answers one request."""
        self.exchanges.append(exchange)
        if (exchange.uid, exchange.turn) in self._said:
            await self.answer(exchange, None)
            await exchange.send()
            return
        script = self._script_of(exchange)
        place = self._places[exchange.uid]
        while isinstance(step := script[min(place, len(script) - 1)], Wait):
            await step(exchange)
            place = max(self._places[exchange.uid], place + 1)
        self._places[exchange.uid] = place + 1
        await step(exchange)
        if exchange.status == 422:
            self._places[exchange.uid] = place

    async def answer(self, exchange: Exchange, turn: Say | None) -> None:
        """Fills in the endpoint's reply; `turn` is what its policy samples."""
        _turn.set(turn)
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": exchange.method,
            "scheme": "http",
            "path": exchange.path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in exchange.headers.items()],
        }
        reply: list[AsgiMessage] = []

        async def receive() -> AsgiMessage:
            return {"type": "http.request", "body": exchange.content, "more_body": False}

        async def keep(message: AsgiMessage) -> None:
            reply.append(message)

        await self.app(scope, receive, keep)
        start, *parts = reply
        exchange.status, exchange.body = start["status"], b"".join(part.get("body", b"") for part in parts)
        exchange.reply_headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        if exchange.status != 200:
            return
        self._said.add((exchange.uid, exchange.turn))
        for name in self._hides:
            exchange.reply_headers.pop(name, None)
        if self._change is not None:
            self._change(exchange)

    def _script_of(self, exchange: Exchange) -> Sequence[Step]:
        if self._scripts:
            document = exchange.document
            for name in (document["rollout_id"], document["messages"][0]["content"]):
                if name in self._scripts:
                    return self._scripts[name]
        return self._script


@contextlib.asynccontextmanager
async def scripted_trainer(
    tokenizer: ChatTokenizer,
    *script: Step,
    scripts: Scripts | None = None,
    tells: bool = True,
    announces: bool = False,
    health: int = 200,
    hides: Collection[str] = (),
    change: Change | None = None,
    app: CallbackApp | None = None,
    **options: Any,
) -> AsyncIterator[ScriptedTrainer]:
    """Serves a script until the block ends.

    Args:
        tokenizer: The trainer's own.
        script: What it does with each rollout's requests.
        scripts: Other scripts, by rollout id or by the content of the first message.
        tells: Whether right replies say of which kind the trainer is.
        announces: Whether replies and `/health` say that asking a turn again is safe.
        health: Status of its answer to `GET /health`.
        hides: Further headers to take out of right replies.
        change: Changes each right reply before it is sent.
        app: An endpoint with a policy of its own, which does not care what `say` says.
        options: For `callback_app`.
    """
    if app is None:

        async def policy(_: list[int], __: GenerateParams) -> Generation:
            return _sampled(tokenizer)

        app = callback_app(policy, tokenizer=tokenizer, parse=_parse, **options)
    hidden = {*hides, *(() if tells else TELLING), *(() if announces else ANNOUNCING)}
    trainer = ScriptedTrainer(app, script, scripts or {}, hidden, change)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/health":
            trainer.health_checks += 1
            said = f"{HEADER_IDEMPOTENT}: true\r\n" if announces else ""
            writer.write(f"HTTP/1.1 {health} Health\r\n{said}Content-Length: 0\r\n\r\n".encode())
        else:
            await trainer.play(Exchange(method, path, headers, content, writer, trainer.answer, app))

    async with answering(handle) as served:
        trainer.url = served.url
        yield trainer


@contextlib.contextmanager
def scripted_trainer_in_thread(tokenizer: ChatTokenizer, *script: Step, **options: Any) -> Iterator[ScriptedTrainer]:
    """The same for a test that has no event loop."""
    started, ended = threading.Event(), threading.Event()
    trainers: list[ScriptedTrainer] = []

    async def serve() -> None:
        async with scripted_trainer(tokenizer, *script, **options) as trainer:
            trainers.append(trainer)
            started.set()
            while not await asyncio.to_thread(ended.wait, 0.1):
                pass

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(30), "the trainer does not listen after 30 s"
        yield trainers[0]
    finally:
        ended.set()
        thread.join()


def _sampled(tokenizer: ChatTokenizer) -> Generation:
    turn = _turn.get()
    assert turn is not None, "the endpoint samples only what a step says"
    ids = tokenizer.encode(turn.text) or tokenizer.encode(" ")
    if turn.tokens is not None:
        ids = (ids * turn.tokens)[: turn.tokens]
    if turn.stop and tokenizer.close_id is not None:
        ids.append(tokenizer.close_id)
    return Generation(
        token_ids=ids, logprobs=[turn.logprob] * len(ids), finish_reason=turn.finish, policy_version=turn.version
    )


def _parse(text: str) -> Message:
    turn = _turn.get()
    assert turn is not None
    if turn.calls or turn.tokens is not None:
        made = {"role": "assistant", "content": turn.text, "tool_calls": list(turn.calls) or None}
        return Message.model_validate(made)
    return parse_tool_calls(text)
