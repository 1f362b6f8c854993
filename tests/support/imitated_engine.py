"""What imitations of inference engines share: a policy that continues ids, weights with versions, pauses and aborts.

    async with vllm_server(tokenizer, ADD, "It is 38.") as engine:
        engine.abort_after(3)
        result = await inside.run_one(server_url=engine.url, protocol="vllm")

A policy knows what to say on each turn, as ids. It is asked with a prompt, and the name of the request tells it the
rollout and the turn. Where the prompt already ends with the first ids of the turn's answer, it goes on after them; and
where the ids are others, it fails the test. So a turn that was aborted comes out whole only if its ids were kept.

The log-probability of an id follows from the id, so a list that is shifted by one is noticed. So do its mask, and its
experts from the id and its place.

Where calls have to be in flight for a while, a `sampler` answers instead (`gradual_engine`).
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from aiohttp import web
from numpy.typing import NDArray

from rolloutpool_common.rendering import ChatTokenizer

CONTEXT = 4096
_NAME = re.compile(r"(.+)/(\d+)\.(\d+)\.(\d+)")


def logprob_of(token: int) -> float:
    """The log-probability that an imitated engine reports for an id."""
    return -(token % 97 + 1) / 64


def experts_of(position: int, token: int) -> list[list[int]]:
    """To which experts an id at a place of the context goes: two of each of three layers."""
    return [[(position * 7 + token * 3 + layer * 5 + k) % 251 for k in range(2)] for layer in range(3)]


def mask_of(token: int) -> list[int]:
    """Of which ids a sampled one was chosen."""
    return [token + 1, *range(token + 5, token + 5 + token % 3), token]


class Refusal(Exception):
    """A request that the engine refuses."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


@dataclass(frozen=True)
class CallName:
    """What the name of a request says."""

    uid: str
    turn: int
    attempt: int
    call: int
    """Of the attempt, over all its turns."""

    @classmethod
    def read(cls, name: str) -> "CallName":
        """Reads the name that a worker gives to a request."""
        named = _NAME.fullmatch(name)
        assert named is not None, f"a request is named by rollout, turn, attempt and call, not {name!r}"
        return cls(named[1], *map(int, named.groups()[1:]))


@dataclass
class Asked:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    document: dict[str, Any]
    port: int = 0
    """The asker's."""
    reply: dict[str, Any] = field(default_factory=dict)
    """None of it where the request was refused."""
    status: int = 0

    @property
    def name(self) -> str:
        """Of the request; empty where a refused one has none."""
        return str(self.document.get("request_id") or self.document.get("rid") or "")


@dataclass(frozen=True)
class Answer:
    """What was sampled in one call."""

    ids: list[int]
    finish: str
    spans: list[dict[str, Any]]
    logprobs: list[float]


Sampler = Callable[[str, list[int], int], Awaitable[Answer]]
"""Continues a prompt: name of the request, prompt, most ids."""


class ImitatedEngine:
    """An engine's state, and all that it was asked."""

    def __init__(self, tokenizer: ChatTokenizer, answers: Sequence[str | Sequence[int]]) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        """Requests for turns, in order."""
        self.keeps_requests = True
        """Whether `asked` is filled; a campaign's engine lives too long for that."""
        self.gets: list[str] = []
        """Paths of other requests."""
        self.context = CONTEXT
        self.key: str | None = None
        """Where it is set, requests need it."""
        self.version = "default"
        self.tells_version = True
        """Whether it says which weights it has, where that is asked."""
        self.tells_context = True
        self.paused = asyncio.Event()
        """Set while it is not paused."""
        self.paused.set()
        self.change: Callable[[dict[str, Any]], None] | None = None
        """Changes each right reply before it is sent."""
        self.before: Callable[[Asked], Awaitable[None]] | None = None
        """Runs before a request is answered."""
        self.after: Callable[[Asked], None] | None = None
        """Runs when it is known how a request is answered, before the answer is sent."""
        self.sampler: Sampler | None = None
        """Samples in the place of the answers."""
        self.refusals: list[Refusal] = []
        """The next requests are refused with these, one after the other."""
        self.version_refusals: list[Refusal] = []
        """The next questions for the weights are refused with these, by a gateway."""
        self.finish: str | None = None
        """How answers end that are whole; None stands for a stop."""
        self.routes = False
        """Whether it was started to tell experts."""
        self.masks = False
        """Whether it was started to tell sampling masks."""
        self.knows_start = True
        """Whether it tells experts from the place on that was asked for; an older one tells all."""
        self._tokenizer = tokenizer
        self._answers = [self._ids(answer) for answer in answers]
        self._starts: dict[tuple[str, int], int] = {}
        self._aborts: list[int] = []
        self._updates: dict[int, str] = {}
        self._named: set[str] = set()

    @property
    def close_id(self) -> int | None:
        """The id that ends a turn."""
        return self._tokenizer.close_id

    def _ids(self, answer: str | Sequence[int]) -> list[int]:
        if not isinstance(answer, str):
            return list(answer)
        close = self._tokenizer.close_id
        return [*self._tokenizer.encode(answer), *([] if close is None else [close])]

    def check_name(self, name: str) -> None:
        """Refuses a name that a request has had. SGLang does while that runs, and notices late that nobody waits."""
        if name in self._named:
            raise Refusal(400, {"error": {"message": f"Duplicate request ID detected: {name}"}})
        self._named.add(name)

    def ids_of(self, turn: int) -> list[int]:
        """What the policy says on a turn, counted from 1; the last answer is said again and again."""
        return self._answers[min(turn, len(self._answers)) - 1]

    def abort_after(self, *ids: int) -> None:
        """Aborts the next calls after so many ids each."""
        self._aborts += ids

    def update_at(self, index: int, version: str) -> None:
        """Has the next call sampled by these weights from an index of its output on."""
        self._updates[index] = version

    async def answer(self, name: str, prompt: list[int], most: int) -> Answer:
        """Continues a prompt, in whatever way this engine samples."""
        return self.sample(name, prompt, most) if self.sampler is None else await self.sampler(name, prompt, most)

    def sample(self, name: str, prompt: list[int], most: int) -> Answer:
        """Continues a prompt by at most so many ids."""
        named = CallName.read(name)
        turn = named.turn
        start = self._starts.setdefault((named.uid, turn), len(prompt))
        whole, done = self.ids_of(turn), prompt[start:]
        assert done == whole[: len(done)], "what was sampled before an abort is not what the next prompt ends with"
        rest = whole[len(done) :]
        cut = self._aborts.pop(0) if self._aborts else None
        ids = rest[: most if cut is None else min(cut, most)]
        if cut is not None and cut <= len(rest):
            finish = "abort"
        elif len(ids) < len(rest) or most <= 0:
            finish = "length"
        else:
            finish = self.finish or "stop"
        return Answer(ids, finish, self.spans(len(ids)), [logprob_of(i) for i in ids])

    def experts(self, context: Sequence[int], start: int) -> NDArray[np.int32]:
        """The experts of all ids of a context from a place on, without the last one, which was not processed yet."""
        begin = start if self.knows_start else 0
        return np.array([experts_of(i, context[i]) for i in range(begin, len(context) - 1)], np.int32)

    def spans(self, n: int) -> list[dict[str, Any]]:
        """Which weights sample each part of a call with so many ids."""
        borders = {0: self.version, **self._updates}
        self._updates = {}
        self.version = borders[max(borders)]
        starts = sorted(start for start in borders if start < n)
        ends = [*starts[1:], n]
        return [{"version": borders[s], "start": s, "end": e} for s, e in zip(starts, ends, strict=True)] if n else []


async def served(
    engine: ImitatedEngine,
    routes: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]],
    gets: Mapping[str, Callable[[], Any]],
    port: int = 0,
) -> web.AppRunner:
    """Starts a server; the caller ends it with `cleanup`.

    Args:
        engine: Whose state it shows.
        routes: What answers a request for a turn, by path; it may raise a `Refusal`.
        gets: What answers other requests, by path; None is 404.
        port: Where it listens; 0 takes a free one.
    """

    async def post(request: web.Request) -> web.Response:
        asked = Asked(
            request.path,
            {k.lower(): v for k, v in request.headers.items()},
            orjson.loads(await request.read()),
            request.get_extra_info("peername", ("", 0))[1],
        )
        if engine.keeps_requests:
            engine.asked.append(asked)
        try:
            return await answered(asked)
        finally:
            if engine.after is not None:
                engine.after(asked)

    async def answered(asked: Asked) -> web.Response:
        try:
            if engine.key is not None and asked.headers.get("authorization") != f"Bearer {engine.key}":
                raise Refusal(401, {"error": "Unauthorized"})
            engine.check_name(asked.name)
            if engine.before is not None:
                await engine.before(asked)
            if engine.refusals:
                raise engine.refusals.pop(0)
            asked.reply = await routes[asked.path](asked.document)
            if engine.change is not None:
                engine.change(asked.reply)
            asked.status = 200
            return web.Response(body=orjson.dumps(asked.reply), content_type="application/json")
        except Refusal as refusal:
            asked.status = refusal.status
            body = refusal.body if isinstance(refusal.body, bytes) else orjson.dumps(refusal.body)
            return web.Response(status=refusal.status, body=body, content_type="application/json")

    async def get(request: web.Request) -> web.Response:
        engine.gets.append(request.path)
        if request.path.endswith("_info") and engine.version_refusals:
            refusal = engine.version_refusals.pop(0)
            return web.Response(status=refusal.status, body=refusal.body, content_type="text/html")
        found = gets[request.path]()
        if found is None:
            return web.Response(status=404, body=b'{"detail":"Not Found"}', content_type="application/json")
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    app = web.Application(client_max_size=2**26)
    app.add_routes([*(web.post(path, post) for path in routes), *(web.get(path, get) for path in gets)])
    # A test ends while calls hang on purpose; the default waits a minute for them.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    engine.url = f"http://{host}:{port}"
    return runner


@contextlib.asynccontextmanager
async def running(runner: Awaitable[web.AppRunner]) -> AsyncIterator[None]:
    """Serves until the block ends; calls that wait are cut off."""
    started = await runner
    try:
        yield
    finally:
        await started.cleanup()
