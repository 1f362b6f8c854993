"""`python -m tests.chaos.trainer LOG TOOLS LATENCY PORT=MANNER …`: a trainer that may be killed at any moment.

Invariant: a turn is in LOG, with the prompt and the ids that were really sampled, before its reply is sent. LOG is the
truth of the campaign, and the trainer's memory: a session that the last process had is played back from it, request by
request, when its rollout asks again; so a turn that was ever answered is never sampled a second time.
"""

import asyncio
import random
import re
import signal
import sys
import zlib
from collections import defaultdict
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send
from tests.chaos.engine import serve_engines
from tests.chaos.manners import ENGINES, Manner
from tests.chaos.record import Record

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.turn_headers import HEADER_ATTEMPT, HEADER_IDEMPOTENCY
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.parsing import parse_tool_calls
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

TURNS = 5
PATH = "/v1/chat/completions"
MISBEHAVES = 0.3
"""How often a busy or flaky port is that."""
HUGE_PIECES, UNPACKED_PIECES = 100, 1024
"""Megabytes of a huge reply, and of a bomb that went off."""
TRICKLED_AT_ONCE = 20
"""Bytes, each sent alone, between two pauses of a trickling reply."""
TRICKLE_SECONDS = 0.002
_SAMPLED = re.compile(rb'\{"event":"sampled","uid":"([^"]+)"')


@dataclass(frozen=True)
class Asked:
    """One request for a turn."""

    headers: list[tuple[str, str]]
    body: bytes
    port: int
    """The asker's."""

    @property
    def uid(self) -> str:
        """The rollout that asks."""
        return self._key[0]

    @property
    def turn(self) -> int:
        """From 1."""
        return int(self._key[1])

    @property
    def attempt(self) -> int:
        """From 1."""
        return int(dict(self.headers)[HEADER_ATTEMPT.lower()])

    @property
    def _key(self) -> list[str]:
        return dict(self.headers)[HEADER_IDEMPOTENCY.lower()].split("/")


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Memory:
    """Where in the log the turns of each rollout are that an earlier process sampled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        place = 0
        with path.open("rb") as file:
            for line in file:
                if (found := _SAMPLED.match(line)) and line.endswith(b"}\n"):
                    self._places[found[1].decode()].append(place)
                place += len(line)

    def take(self, uid: str) -> list[dict[str, Any]]:
        """The rollout's turns, once; empty for a rollout of this process."""
        records = []
        with self._path.open("rb") as file:
            for place in self._places.pop(uid, ()):
                file.seek(place)
                records.append(orjson.loads(file.readline()))
        return records


_asked: ContextVar[Asked] = ContextVar("asked")


class Trainer:
    """One port: an ASGI app around a `CallbackApp`."""

    def __init__(
        self,
        manner: Manner,
        record: Record,
        memory: Memory,
        tokenizer: ChatTokenizer,
        tools: list[dict[str, Any]],
        latency: float,
    ) -> None:
        self._manner = manner
        self._record = record
        self._memory = memory
        self._policy = ScriptedPolicy(tokenizer, turns=TURNS)
        self._latency = latency * (3 if manner is Manner.SLOW else 1)
        self._kept: dict[tuple[str, int], Generation] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._app = callback_app(
            self._generate,
            tokenizer=tokenizer,
            tools=tools,
            keeps_ids=manner is not Manner.RERENDER,
            parse=_parse,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        asked = Asked(headers, await _body(receive), scope["client"][1])
        about = {"uid": asked.uid, "turn": asked.turn, "attempt": asked.attempt}
        self._record.write("ask", **about, port=asked.port)
        answer = self._misbehaving(await self._answer(asked))
        self._record.write("answer", **about, status=answer.status)
        if answer.status == 200 and self._manner is Manner.BOMB:
            packed = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
            answer = Answer(200, packed, await asyncio.to_thread(_bomb))
        if answer.status == 200 and self._manner is Manner.HUGE:
            await _send_hugely(send)
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        if self._manner is Manner.TRICKLE:
            await _trickle(send, answer.body)
            return
        if self._manner is Manner.FLAKY and answer.status == 200 and random.random() < MISBEHAVES:
            await send({"type": "http.response.body", "body": answer.body[:100], "more_body": True})
            raise ConnectionAbortedError("a flaky trainer")
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, asked: Asked) -> Answer:
        if self._manner is Manner.DEAF:
            return Answer(500, [], b"")
        if self._manner is Manner.BUSY and random.random() < MISBEHAVES:
            return Answer(429, [(b"retry-after", b"1")], b"")
        if self._manner is not Manner.FORGETFUL:
            async with self._locks[asked.uid]:
                await self._remember(asked.uid)
        return await self._ask(asked)

    async def _remember(self, uid: str) -> None:
        for past in self._memory.take(uid):
            self._kept[uid, past["turn"]] = Generation(token_ids=past["ids"], logprobs=past["logprobs"])
            answer = await self._ask(Asked([(n, v) for n, v in past["headers"]], past["body"].encode(), 0))
            if answer.status != 200:
                self._record.write("forgotten", uid=uid, turn=past["turn"], status=answer.status)

    async def _ask(self, asked: Asked) -> Answer:
        _asked.set(asked)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": asked.body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in asked.headers],
            "client": None,
            "server": None,
        }
        await self._app(scope, receive, send)
        return Answer(sent[0]["status"], sent[0]["headers"], b"".join(part.get("body", b"") for part in sent[1:]))

    async def _generate(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        asked = _asked.get()
        kept = self._kept.pop((asked.uid, asked.turn), None)
        if kept is not None:
            return kept
        await asyncio.sleep(self._latency * random.uniform(0.5, 1.5))
        generation = await self._policy(prompt_ids, params)
        self._record.write(
            "sampled",
            uid=asked.uid,
            turn=asked.turn,
            attempt=asked.attempt,
            prompt=prompt_ids,
            ids=generation.token_ids,
            logprobs=generation.logprobs,
            headers=asked.headers,
            body=asked.body.decode(),
        )
        return generation

    def _misbehaving(self, answer: Answer) -> Answer:
        if answer.status != 200:
            return answer
        if self._manner is Manner.FLAKY and random.random() < MISBEHAVES:
            return Answer(503, [], b"")
        if self._manner not in (Manner.SHORT, Manner.ALIEN):
            return answer
        reply = orjson.loads(answer.body)
        if self._manner is Manner.SHORT:
            reply["logprobs"].pop()
        else:
            reply["token_ids"][0] = 2**31
        return Answer(200, [(b"content-type", b"application/json")], orjson.dumps(reply))


def _parse(text: str) -> Message:
    """As by default, but with the same ids for the same calls: what is played back must be what was said."""
    message, asked = parse_tool_calls(text), _asked.get()
    calls = [
        call.model_copy(update={"id": f"call_{asked.uid}_{asked.turn}_{place}"})
        for place, call in enumerate(message.tool_calls or ())
    ]
    return message.model_copy(update={"tool_calls": calls or None})


async def _send_hugely(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    begin = b'{"choices":[{"message":{"role":"assistant","content":"'
    await send({"type": "http.response.body", "body": begin, "more_body": True})
    for _ in range(HUGE_PIECES):
        await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
    await send({"type": "http.response.body", "body": b'"}}]}'})


async def _trickle(send: Send, body: bytes) -> None:
    for place in range(len(body)):
        await send({"type": "http.response.body", "body": body[place : place + 1], "more_body": True})
        if place % TRICKLED_AT_ONCE == 0:
            await asyncio.sleep(TRICKLE_SECONDS)
    await send({"type": "http.response.body", "body": b""})


@cache
def _bomb() -> bytes:
    """Spaces, packed by gzip: 1 MB that is 1 GB."""
    # 16 more than the usual window: the header is that of gzip.
    packer = zlib.compressobj(level=6, wbits=zlib.MAX_WBITS | 16)
    piece = b" " * 2**20
    return b"".join([*(packer.compress(piece) for _ in range(UNPACKED_PIECES)), packer.flush()])


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def main() -> None:
    """Serves until it is killed."""
    path, tools, latency = Path(sys.argv[1]), orjson.loads(Path(sys.argv[2]).read_bytes()), float(sys.argv[3])
    record, tokenizer = Record(path), load_tokenizer("rolloutpool/tiny")
    memory = Memory(path)
    with ExitStack() as stack:
        listens = {int(port): Manner(manner) for port, manner in (text.split("=") for text in sys.argv[4:])}
        engines = {port: manner for port, manner in listens.items() if manner in ENGINES}
        for port, manner in listens.items() - engines.items():
            trainer = Trainer(manner, record, memory, tokenizer, tools, latency)
            stack.enter_context(serve_callback(trainer, [port]))
        stack.enter_context(serve_engines(engines, record, tokenizer, turns=TURNS, latency=latency))
        record.write("start")
        signal.pause()


if __name__ == "__main__":
    main()
