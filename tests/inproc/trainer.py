"""The trainer: it samples what it likes, notes what it sampled, and answers behind the worker's transport.

A question says how many turns its rollout has. Each sampling of a turn says something else, so that a turn which was
asked twice, or of an attempt that was given up, can be told from the right one. Answers come late, get lost after the
turn was sampled, or are refusals, as chance has it.
"""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
from tests.inproc.clock import PoolLoop

from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENT
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_worker.policy.transport import AiohttpTransport

KEEPS, RENDERS, ONCE, HOOK = (f"http://127.0.0.1:{port}" for port in (8081, 8082, 8083, 8090))
"""A trainer that keeps ids, one that renders its history again, one that may not be asked twice; and the webhook."""
_QUESTION = re.compile(r"in (\d+) turns")
_asked: ContextVar[tuple[str, int]] = ContextVar("asked")


@dataclass(frozen=True)
class Sampled:
    """One sampling of one turn."""

    uid: str
    turn: int
    attempt: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    ended: bool
    """Whether the close token was sampled."""


@dataclass
class TrainerFaults:
    """How often something happens to a call."""

    slow: float = 0.0
    refused: float = 0.0
    busy: float = 0.0
    lost: float = 0.0


@dataclass
class Trainer:
    """All ports."""

    loop: PoolLoop
    chance: random.Random
    tokenizer: ChatTokenizer
    tools: list[dict[str, Any]]
    faults: TrainerFaults = field(default_factory=TrainerFaults)
    sampled: defaultdict[str, list[Sampled]] = field(default_factory=lambda: defaultdict(list))
    """By uid, in order."""
    pushed: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """By uid: what its webhook got."""
    attempts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By uid: which attempt made each call."""
    asks: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By uid: how often each turn was asked, by its key."""

    def __post_init__(self) -> None:
        self._apps = {
            url: callback_app(self._generate, tokenizer=self.tokenizer, tools=self.tools, keeps_ids=url != RENDERS)
            for url in (KEEPS, RENDERS, ONCE)
        }

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """Answers a worker's request, wherever the worker is by then."""
        chance, faults = self.chance, self.faults
        where = f"{request.url.scheme}://{request.url.host}:{request.url.port}"
        await asyncio.sleep(chance.uniform(0.2, 20) if chance.random() < faults.slow else chance.uniform(0.001, 0.2))
        if chance.random() < faults.refused:
            raise httpx.ConnectError("refused")
        if chance.random() < faults.busy:
            return httpx.Response(503, headers={"Retry-After": "1"}, stream=_Body(b""), request=request)
        if where == HOOK:
            document = orjson.loads(request.content)
            self.pushed[request.headers["webhook-id"]].append(document["data"])
            response = httpx.Response(200, stream=_Body(b""), request=request)
        else:
            # In a context of its own: it goes on when the one who asked is dead.
            response = await asyncio.wait_for(asyncio.shield(self._apart(where, request)), 3600)
        if chance.random() < faults.lost:
            raise httpx.ReadError("the reply was lost")
        await asyncio.sleep(chance.uniform(0, 0.05))
        return response

    def _apart(self, where: str, request: httpx.Request) -> "asyncio.Task[httpx.Response]":
        return self.loop.outside.copy().run(self.loop.create_task, self._ask(where, request))

    async def _ask(self, where: str, request: httpx.Request) -> httpx.Response:
        key = request.headers.get("idempotency-key", "")
        if key:
            attempt = int(request.headers["x-rollout-attempt"])
            uid = key.partition("/")[0]
            self.attempts[uid].append(attempt)
            self.asks[uid][key] += 1
            _asked.set((uid, attempt))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=self._apps[where]), base_url=where) as client:
            reply = await client.send(
                client.build_request(request.method, request.url, headers=request.headers, content=request.content)
            )
        headers = dict(reply.headers)
        if where == ONCE:
            headers.pop(HEADER_IDEMPOTENT.lower(), None)
        return httpx.Response(reply.status_code, headers=headers, stream=_Body(reply.content), request=request)

    async def _generate(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        uid, attempt = _asked.get()
        found = _QUESTION.search(str(params.messages[-1 if params.turn == 1 else 0].get("content")))
        found = found or next(m for message in params.messages if (m := _QUESTION.search(str(message.get("content")))))
        text, chance = self._text(params.turn, int(found[1])), self.chance
        cut = chance.randrange(len(text)) if chance.random() < 0.3 else 0
        ids = [*self.tokenizer.encode(text[:cut]), *self.tokenizer.encode(text[cut:])]
        ended = params.turn < int(found[1]) or chance.random() < 0.9
        if ended and self.tokenizer.close_id is not None:
            ids.append(self.tokenizer.close_id)
        logprobs = [-round(chance.uniform(0.001, 3), 6) for _ in ids]
        kept = (uid, params.turn, attempt, tuple(prompt_ids), tuple(ids), tuple(logprobs), text, ended)
        self.sampled[uid].append(Sampled(*kept))
        return Generation(token_ids=ids, logprobs=logprobs, finish_reason="stop" if ended else "length")

    def _text(self, turn: int, turns: int) -> str:
        a, b = self.chance.randrange(1000), self.chance.randrange(1000)
        if turn >= turns:
            return f"The result is {a}.{b}, as I said."
        calls = [
            f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {a + n}, "b": {b}}}}}\n</tool_call>'
            for n, name in enumerate(self.chance.choice((("add",), ("multiply",), ("add", "subtract"))))
        ]
        return "\n".join([*self.chance.choice(((), (f"Step {turn}: {a}.",))), *calls])


def question(chance: random.Random, turns: int) -> str:
    """What a rollout of so many turns begins with."""
    return f"Calculate {chance.randrange(100)} + {chance.randrange(100)} in {turns} turns."


class _Body(httpx.AsyncByteStream):
    """A body that is read once, as from a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class TrainerTransport(AiohttpTransport):
    """A worker's way to the trainer."""

    def __init__(self, trainer: Trainer) -> None:
        # Not the base's: it would make a TLS context, which takes longer than ten rollouts.
        self._trainer = trainer
        self.timeout = httpx.Timeout(300.0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Asks."""
        await request.aread()
        answer = await self._trainer.answer(request)
        answer.extensions["discard"] = lambda: None
        return answer

    async def aclose(self) -> None:
        """Nothing is open."""
