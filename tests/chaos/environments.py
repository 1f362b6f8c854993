"""`python -m tests.chaos.environments LOG PORT`: environments of a campaign, in a process that may be killed.

They have the form of a resources server. A session is a running total: each call of a calculator's tool changes it, and
the answer is the new total, so an answer shows every call before it. The total begins with the rollout's seed.

| environment | declares | what it does |
|---|---|---|
| `kept` | `restartable` | plays; fails now and then, and forgets all sessions when it is killed |
| `lost` | `none` | plays |
| `hanging` | `none` | never answers a call |
| `huge` | `none` | answers a call with 20 MB |
| `failing` | `none` | answers a call with 500 |

Invariant: what a session does is in LOG before its reply is sent. `sessions.py` judges by it.
"""

import asyncio
import random
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tests.chaos.manners import Manner
from tests.chaos.record import Record

from rolloutpool_trainer.endpoint.server import serve_callback

KEPT, LOST = "kept", "lost"
BAD = ("hanging", "huge", "failing")
CALL_SECONDS = (0.0, 0.5)
"""How long an answer takes after the session has changed, so that workers die in the middle of calls."""
FAILS = 0.01
"""How often a kept session does not answer, and has done nothing."""
MANNERS = frozenset({Manner.STEADY, Manner.SLOW, Manner.BUSY, Manner.FLAKY, Manner.RERENDER})
"""Of trainers whose rollouts may have an environment."""
_NAMES = ("add", "subtract", "multiply", "divide")
_NUMBERS = {name: {"type": "number"} for name in ("a", "b")}
_ROW = {
    "responses_create_params": {
        "tools": [
            {
                "type": "function",
                "name": name,
                "description": f"A running total: {name}",
                "parameters": {"type": "object", "properties": _NUMBERS, "required": ["a", "b"]},
            }
            for name in _NAMES
        ]
    }
}
_PLACES = {0: KEPT, 2: KEPT, 4: KEPT, 8: LOST}
_BAD_PLACE = 19


def choice_of(number: int, manner: Manner, *, early: bool) -> dict[str, Any]:
    """The environment of a rollout, as a field of it; empty for most.

    Args:
        number: Of the rollout.
        manner: Of its trainer.
        early: Whether it is of the campaign's first half: what never answers is not waited for in the end.
    """
    place = number % 20
    name = BAD[number // 20 % len(BAD)] if place == _BAD_PLACE and early else _PLACES.get(place)
    if name is None or manner not in MANNERS:
        return {}
    return {"environment": {"name": name, "seed": number, "task": _ROW}}


def next_total(total: int, name: str, a: float, b: float) -> int:
    """What a session answers to a call, and keeps."""
    match name:
        case "add":
            value = a + b
        case "subtract":
            value = a - b
        case "multiply":
            value = a * b
        case _:
            value = a // b if b else 0
    return int(31 * total + value) % 9973


def write_file(path: Path, address: str, port: int) -> None:
    """Writes the operator's file for the workers, who find the environments at this address."""
    entries = [
        f'[{name}]\nkind = "http"\nurl = "http://{address}:{port}/{name}"\n'
        f'crash = "{"restartable" if name == KEPT else "none"}"\n'
        for name in (KEPT, LOST, *BAD)
    ]
    path.write_text("".join(entries))
    path.chmod(0o600)


@dataclass
class _TotalState:
    """One session."""

    environment: str
    uid: str
    attempt: int
    port: int
    """Of the worker's connection when it was opened."""
    total: int
    calls: int = 0


class _TotalServer:
    """All sessions of this process, by cookie."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._sessions: dict[str, _TotalState] = {}
        self._newest: dict[str, int] = {}
        # Part of each cookie, because a process that was killed has closed nothing.
        self._process = secrets.token_hex(4)
        self._opened = 0
        asked = {"seed_session": self._seed, "verify": self._verify, "close_session": self._close}
        asked |= dict.fromkeys(_NAMES, self._call)
        self.app = Starlette(
            routes=[
                Route("/sessions", self._list),
                *(
                    Route(f"/{{environment}}/{path}", self._bound(path, do), methods=["POST"])
                    for path, do in asked.items()
                ),
            ]
        )

    def _bound(self, path: str, do: Callable[[Request, str], Awaitable[Response]]) -> Any:
        async def answer(request: Request) -> Response:
            return await do(request, path)

        return answer

    async def _list(self, request: Request) -> Response:
        return JSONResponse({cookie: vars(state) for cookie, state in self._sessions.items()})

    async def _seed(self, request: Request, path: str) -> Response:
        uid, attempt = _asker(request)
        row = orjson.loads(await request.body())
        if attempt < self._newest.get(uid, 0):
            self._record.write("refused", uid=uid, attempt=attempt, path=path)
            return PlainTextResponse("a later attempt has the session", 409)
        self._newest[uid] = attempt
        for cookie in [cookie for cookie, state in self._sessions.items() if state.uid == uid]:
            del self._sessions[cookie]
        self._opened += 1
        cookie = f"{self._process}-{self._opened}"
        environment = request.path_params["environment"]
        assert request.client is not None
        state = self._sessions[cookie] = _TotalState(environment, uid, attempt, request.client.port, row["seed"])
        self._record.write("open", session=cookie, **vars(state))
        response = JSONResponse({})
        response.set_cookie("session", cookie, httponly=True)
        return response

    async def _call(self, request: Request, path: str) -> Response:
        state, refusal = self._of(request, path)
        if state is None:
            return refusal
        match state.environment:
            case "hanging":
                await asyncio.Event().wait()
            case "huge":
                return PlainTextResponse("x" * 20_000_000)
            case "failing":
                return PlainTextResponse("no", 500)
            case "kept" if random.random() < FAILS:
                return PlainTextResponse("not now", 500)
        given = orjson.loads(await request.body())
        state.total = next_total(state.total, path, given["a"], given["b"])
        state.calls += 1
        self._note("call", request, name=path, a=given["a"], b=given["b"], answer=str(state.total))
        answer = PlainTextResponse(str(state.total))
        await asyncio.sleep(random.uniform(*CALL_SECONDS))
        return answer

    async def _verify(self, request: Request, path: str) -> Response:
        state, refusal = self._of(request, path)
        if state is None:
            return refusal
        return JSONResponse({"reward": float(state.total), "reward_components": {"calls": float(state.calls)}})

    async def _close(self, request: Request, path: str) -> Response:
        if self._sessions.pop(request.cookies.get("session", ""), None) is not None:
            self._note("close", request)
        return JSONResponse({})

    def _of(self, request: Request, path: str) -> tuple[_TotalState | None, Response]:
        """The session that a request is for; or why there is none."""
        state = self._sessions.get(request.cookies.get("session", ""))
        uid, attempt = _asker(request)
        if attempt < self._newest.get(uid, 0):
            self._record.write("refused", uid=uid, attempt=attempt, path=path)
            return None, PlainTextResponse("this attempt is over", 409)
        return state, PlainTextResponse("no such session", 500)

    def _note(self, event: str, request: Request, **more: Any) -> None:
        uid, attempt = _asker(request)
        self._record.write(event, session=request.cookies["session"], uid=uid, attempt=attempt, **more)


def _asker(request: Request) -> tuple[str, int]:
    return request.headers["x-rollout-id"], int(request.headers["x-rollout-attempt"])


def main() -> None:
    """Serves until it is killed."""
    record = Record(Path(sys.argv[1]))
    with serve_callback(_TotalServer(record).app, [int(sys.argv[2])]):
        record.write("start")
        signal.pause()


if __name__ == "__main__":
    main()
