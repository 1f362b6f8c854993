"""A small server in the form of NeMo Gym's resources servers, with the manners of a real one; and with bad ones.

It plays the guessing game: `/seed_session` opens a session under a cookie, `/guess` plays, `/verify` scores. Sessions
are bound to rollout and attempt: a later attempt ends the session of an earlier one, which gets 409 from then on.
"""

import random
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

TOOL = {
    "type": "function",
    "name": "guess",
    "description": "Guesses the number",
    "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    "strict": True,
}


def row(**fields: Any) -> dict[str, Any]:
    """A row of its data set."""
    return {"responses_create_params": {"input": [{"role": "user", "content": "Guess."}], "tools": [TOOL]}, **fields}


ROW = row()


@dataclass
class _GameState:
    uid: str
    attempt: int
    number: int
    guesses: int = 0
    right: bool = False


@dataclass
class ResourcesServer:
    """The server; `app` is to be served."""

    capacity: int = 1000
    counts: bool = False
    """Whether it says how many calls of a session it has answered."""
    sessions: dict[str, _GameState] = field(default_factory=dict)
    """By cookie."""
    seen: Counter[str] = field(default_factory=Counter)
    """Requests by path."""
    verified: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of `/verify`."""
    seeded: dict[str, Any] = field(default_factory=dict)
    """What `/seed_session` returns, besides its cookie."""
    manners: dict[str, str] = field(default_factory=dict)
    """By path: `hang`, `huge`, `500`, `503`, `302`, `garbage`."""

    def forget(self) -> None:
        """Begins all its sessions again, as a server without a memory of its own does when it is started again."""
        for state in self.sessions.values():
            state.guesses, state.right = 0, False

    @property
    def app(self) -> Starlette:
        """All routes."""
        paths = {"seed_session": self._seed, "guess": self._guess, "verify": self._verify, "close_session": self._close}
        return Starlette(
            routes=[Route(f"/{path}", self._mannered(path, do), methods=["POST"]) for path, do in paths.items()]
        )

    def _mannered(self, path: str, do: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.seen[path] += 1
            match self.manners.get(path):
                case "hang":
                    # As long as somebody waits: the server's end would wait for it too.
                    while (await request.receive())["type"] != "http.disconnect":
                        pass
                    return Response(status_code=500)
                case "huge":
                    return PlainTextResponse("x" * 20_000_000)
                case "302":
                    return Response(status_code=302, headers={"Location": "/elsewhere"})
                case "garbage":
                    return PlainTextResponse("\x00{[")
                case str(status):
                    return PlainTextResponse("no", int(status))
            document = orjson.loads(await request.body())
            response: Response = await do(request, document)
            state = self.sessions.get(request.cookies.get("session", ""))
            if self.counts and state is not None:
                response.headers["X-Session-Calls"] = self.manners.get("count", str(state.guesses))
            return response

        return answer

    async def _seed(self, request: Request, document: dict[str, Any]) -> Response:
        uid, attempt = request.headers["x-rollout-id"], int(request.headers["x-rollout-attempt"])
        for cookie, state in tuple(self.sessions.items()):
            if state.uid == uid:
                if state.attempt > attempt:
                    return PlainTextResponse("a later attempt has the session", 409)
                del self.sessions[cookie]
        if len(self.sessions) >= self.capacity:
            return PlainTextResponse("full", 503)
        cookie = secrets.token_hex(8)
        self.sessions[cookie] = _GameState(uid, attempt, random.Random(document.get("seed")).randint(1, 100))
        response = JSONResponse(self.seeded)
        response.set_cookie("session", cookie, httponly=True)
        return response

    async def _guess(self, request: Request, document: dict[str, Any]) -> Response:
        state = self.sessions.get(request.cookies.get("session", ""))
        if state is None:
            return PlainTextResponse("no such session", 409)
        state.guesses += 1
        state.right = document["number"] == state.number
        word = "right" if state.right else "wrong"
        return JSONResponse({"said": f"{word} at guess {state.guesses}", "done": state.right})

    async def _verify(self, request: Request, document: dict[str, Any]) -> Response:
        self.verified.append(document)
        state = self.sessions.get(request.cookies.get("session", ""))
        if state is None:
            return PlainTextResponse("no such session", 409)
        return JSONResponse(
            {**document, "reward": float(state.right), "reward_components": {"guesses": float(state.guesses)}}
        )

    async def _close(self, request: Request, document: dict[str, Any]) -> Response:
        self.sessions.pop(request.cookies.get("session", ""), None)
        return JSONResponse(document)
