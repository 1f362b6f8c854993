"""A small server with the manners of OpenEnv's: a session for each WebSocket; and with bad manners.

It plays the guessing game. The messages are those of `openenv` 0.10 (`openenv.core.env_server.http_server`): `reset`,
`step`, `mcp` with `tools/list`, `close`, and errors with a code. tests/environments has the same tests on the real one.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import WSMsgType, web
from tests.support.waiting import until_true

TOOL = {
    "name": "guess",
    "description": "Guesses the number",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}
ACTION = {
    "type": "object",
    "description": "A guess.",
    "additionalProperties": False,
    "properties": {"metadata": {"type": "object"}, "number": {"type": "integer"}},
    "required": ["number"],
}


@dataclass
class _Played:
    number: int
    guesses: int = 0


@dataclass
class OpenEnvStub:
    """The server; what it was sent, and what it keeps."""

    tools: bool = True
    """Whether its actions are calls of tools, as in an environment of MCP tools."""
    shows: tuple[str, ...] = ()
    """Types of parts that results have beside their text."""
    capacity: int = 100
    manners: dict[str, str] = field(default_factory=dict)
    """By type of message, or `connect`: what it does wrong there."""
    sessions: int = 0
    most: int = 0
    """Sessions at once."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """All messages."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each handshake, in lower case."""
    pongs: int = 0
    url: str = ""

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["OpenEnvStub"]:
        """Serves it on the running loop."""
        app = web.Application()
        app.router.add_get("/ws", self._connect)
        app.router.add_get("/schema", self._schema)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": {}, "state": {}})

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        match self.manners.get("connect", ""):
            case "302":
                return web.Response(status=302, headers={"Location": "http://127.0.0.2:9/ws"})
            case str(status) if status.isdigit():
                return web.Response(status=int(status))
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        if self.sessions >= self.capacity:
            await socket.send_str(_error("CAPACITY_REACHED", "Server at capacity"))
            await socket.close()
            return socket
        self.sessions += 1
        self.most = max(self.most, self.sessions)
        try:
            if self.manners.get("connect") == "talk":
                await socket.send_str(_observation({"said": "hello"}))
            await self._serve(socket)
        finally:
            self.sessions -= 1
        await socket.close()
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        state = _Played(0)
        async for message in socket:
            if message.type is WSMsgType.PONG:
                self.pongs += 1
            if message.type is not WSMsgType.TEXT:
                continue
            # As the real one does: orjson takes no text that is no UTF-8.
            asked = json.loads(message.data)
            self.seen.append(asked)
            manner = self.manners.get(asked["type"], "")
            if manner == "hang":
                await asyncio.Event().wait()
            if manner == "end":
                return
            if asked["type"] == "close":
                break
            said = _MANNERS.get(manner) or (_error(manner, "secret") if manner else None)
            await socket.send_str(said or self._answer(asked, state))
            if asked["type"] == "reset":
                await socket.ping()

    def _answer(self, asked: dict[str, Any], state: _Played) -> str:
        data = asked["data"]
        match asked["type"]:
            case "reset":
                if "level" in data:
                    return _error("VALIDATION_ERROR", "Invalid message", errors=[])
                state.number = random.Random(data.get("seed")).randint(1, 100)
                return _observation({"said": "Guess a number."} if not self.tools else {}, reward=0.0)
            case "mcp" if self.tools:
                return _said("mcp", {"jsonrpc": "2.0", "id": data["id"], "result": {"tools": [TOOL]}})
            case "mcp":
                error = {"code": -32603, "message": "Environment does not support MCP", "data": None}
                return _said("mcp", {"jsonrpc": "2.0", "id": data["id"], "error": error})
        number = data["arguments"]["number"] if self.tools else data["number"]
        # As a policy writes it, where its messages are the actions.
        if not str(number).isdecimal():
            fault = {"loc": ["number"], "msg": "Input should be a valid integer"}
            return _error("VALIDATION_ERROR", "Invalid message", errors=[fault])
        state.guesses += 1
        right = int(number) == state.number
        said = f"{'right' if right else 'wrong'} at guess {state.guesses}"
        seen: dict[str, Any] = {"said": said, "metadata": {"hidden": state.number}}
        if self.tools:
            content = [{"type": "text", "text": said}, *({"type": kind, "data": "…"} for kind in self.shows)]
            seen = {"tool_name": "guess", "result": {"content": content, "is_error": False}, "error": None}
        return _observation(seen, reward=1.0 if right else -0.5, done=right)


async def none_left(server: OpenEnvStub) -> None:
    """Waits until it has no session."""
    await until_true(lambda: server.sessions == 0)


def _said(kind: str, data: dict[str, Any]) -> str:
    return orjson.dumps({"type": kind, "data": data}).decode()


def _observation(seen: dict[str, Any], *, reward: float | None = None, done: bool = False) -> str:
    return _said("observation", {"observation": seen, "reward": reward, "done": done})


def _error(code: str, message: str, **more: Any) -> str:
    return _said("error", {"message": message, "code": code, **more})


_MANNERS = {
    "huge": _observation({"said": "x" * 9_000_000}),
    "garbage": "\x00{[",
    "list": "[1]",
    "no data": '{"type": "observation"}',
    "other type": _said("state", {}),
    "other form": _said("observation", {"observation": "text", "reward": None, "done": False}),
    "odd reward": _said("observation", {"observation": {}, "reward": "much", "done": False}),
    "odd done": _said("observation", {"observation": {}, "reward": 1, "done": "no"}),
    "at once": _observation({}, done=True),
    "tool failed": _observation(
        {"tool_name": "guess", "result": None, "error": {"error_type": "execution_error", "message": "no luck"}}
    ),
    "tool in doubt": _observation(
        {"tool_name": "guess", "result": None, "error": {"error_type": "timeout", "message": "secret"}}
    ),
}
