"""A controller's side of the Osmosis wire: OpenAI's chat completions on a URL of its own for each rollout.

It calculates: asked a question with tools it calls `add`, and with the result it answers. Its replies have no ids. It
is stricter than OpenAI's servers: a null in a message, an unknown field, arguments that are no text, or a wrong key are
refused, so a request that passes here passes there.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolloutpool_trainer.endpoint.server import serve_callback

KEY = "sk-controller"
ASK = {"role": "user", "content": "What is 15 + 23?"}
ANSWER = "It is 38."
_KEYS = {"model", "messages", "tools"}


class ChatServer:
    """What it was asked, and how it answers."""

    def __init__(self) -> None:
        self.base = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Rollout ids and bodies, in order."""
        self.keys: list[str] = []
        """The turn key of each request."""
        self.gate = threading.Event()
        """Cleared, it keeps every answer back."""
        self.gate.set()
        self.change: Callable[[dict[str, Any]], Response | None] | None = None
        """Changes a reply before it is sent, or answers otherwise."""

    def url(self, rollout_id: str) -> str:
        """The base URL of a rollout."""
        return f"{self.base}/v1/rollouts/{rollout_id}"

    def of(self, rollout_id: str) -> list[dict[str, Any]]:
        """The requests of a rollout."""
        return [body for name, body in self.asked if name == rollout_id]

    def answer(self, request: Request, data: bytes) -> Response:
        """Answers a request for a turn."""
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": {"message": "Incorrect API key provided"}}, status_code=401)
        body = orjson.loads(data)
        if fault := _fault(body):
            return JSONResponse({"error": {"message": fault}}, status_code=400)
        self.asked.append((request.path_params["rollout_id"], body))
        self.keys.append(request.headers["idempotency-key"])
        self.gate.wait(60)
        reply = completion(body)
        changed = None if self.change is None else self.change(reply)
        return JSONResponse(reply) if changed is None else changed


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request."""
    numbers = re.findall(r"\d+", body["messages"][0]["content"])
    if body["messages"][-1]["role"] != "tool" and len(numbers) >= 2 and body.get("tools"):
        arguments = orjson.dumps(dict(zip("ab", map(int, numbers), strict=False))).decode()
        call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
        finish = "tool_calls"
    else:
        said = f"It is {body['messages'][-1]['content']}." if body["messages"][-1]["role"] == "tool" else "Hello."
        message, finish = {"role": "assistant", "content": said, "refusal": None}, "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    }


def _fault(body: dict[str, Any]) -> str | None:
    """What is wrong with a request; None where nothing is."""
    if unknown := body.keys() - _KEYS:
        return f"Unrecognized request argument supplied: {sorted(unknown)}"
    if body.get("tools") == []:
        return "[] is too short - 'tools'"
    for message in body["messages"]:
        if None in message.values():
            return f"null in {message}"
        if any(not isinstance(call["function"]["arguments"], str) for call in message.get("tool_calls", ())):
            return "arguments must be a string"
    return None


@contextlib.contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Serves until the block ends."""
    server = ChatServer()

    async def post(request: Request) -> Response:
        data = await request.body()
        # In a thread, because the gate blocks.
        return await run_in_threadpool(server.answer, request, data)

    app = Starlette(routes=[Route("/v1/rollouts/{rollout_id}/chat/completions", post, methods=["POST"])])
    with serve_callback(app, [0]) as served:
        server.base = served.url
        try:
            yield server
        finally:
            server.gate.set()
