"""Environments behind HTTP, in the form of NeMo Gym's resources servers.

The task is a row of such a server's data set: `{"responses_create_params": {"tools": [...]}, ...}`. Its fields travel
unchanged.

| the pool | the server |
|---|---|
| opens a session | `POST /seed_session` with the row, and `seed` if the rollout has one; its cookies are the session |
| passes a call on | `POST /<tool>` with the arguments; the body of the reply is what the policy reads |
| asks for the score | `POST /verify` with the row and `response`, the transcript in the Responses API's form |
| closes the session | `POST /close_session`, which older servers do not have |

What a reply's status means:

- 429 and 503 to `/seed_session`: the server is full, and the rollout waits.
- Another 4xx there: the task is wrong.
- 400 and 422 to a call: the policy reads the body, and may try again.
- Everything else, and each error of `/verify`: the environment has failed. So has a `/verify` that says of itself that
  its reward measures nothing (`mask_sample`). A 404 to a call is no answer for the policy either: the row names the
  tool, so the server has lost the route, or the session.

A server that has lost a session may begin another one under the same cookie, and then all its answers are wrong. One
that sends `X-Session-Calls` says how many calls of tools it has answered in the session, and that must be as many as
were made.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError, field_validator

from rolloutpool_common.errors import EnvironmentFault, EnvironmentLost, RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.response_items import output_items
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.capabilities.foreign_environments.server_calls import ServerCalls, ServerEntry, ServerReply
from rolloutpool_worker.environments.base import Environment, EnvironmentFull, OpenedSession, SessionScore, StepAnswer

FULL = frozenset({429, 503})
SAID_TO_POLICY = frozenset({400, 422})
"""A FastAPI server's words for a call that it cannot take."""
SESSION_CALLS = "X-Session-Calls"
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED = frozenset(
    {"seed_session", "verify", "close_session", "sandbox_access", "aggregate_metrics", "reverify_mode", "mcp"}
)
"""The server's own routes. The names of tools come from whoever submits the rollout."""


class HttpServer(ServerEntry):
    """One entry of the operator's file."""

    done_flag: bool = False
    """Whether `"done": true` in a tool's answer ends the episode."""

    @field_validator("crash")
    @classmethod
    def _crash(cls, value: CrashEffect) -> CrashEffect:
        if value is CrashEffect.SNAPSHOT:
            raise ValueError("a server in this form has no snapshots")
        return value


@dataclass
class _Session:
    calls: ServerCalls
    row: dict[str, Any]
    tools: list[Any]
    """As the row has them."""
    uid: str
    attempt: int
    answered: int | None = 0
    """Calls of tools that the server has answered with less than 400; None where one was given up."""


class HttpEnvironment(Environment):
    """One such server."""

    def __init__(self, name: str, server: HttpServer, targets: Targets) -> None:
        """Connects to nothing yet."""
        self.crash = server.crash
        self.places = server.places
        self._name = name
        self._server = server
        self._connections = ServerConnections(targets)

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Seeds a session on the server."""
        if not isinstance(task, dict):
            raise RequestFault(f"environment {self._name}: its task is an object, a row of the data set")
        row = task if seed is None else {**task, "seed": seed}
        params = row.get("responses_create_params")
        listed = params.get("tools") if isinstance(params, dict) else None
        listed = listed if isinstance(listed, list) else []
        tools = [self._definition(tool) for tool in listed]
        calls = ServerCalls(self._connections, self._server.url, self._server.headers, rollout_uid, attempt)
        reply = await calls.post("seed_session", row)
        if reply.status in FULL:
            raise EnvironmentFull(f"environment {self._name}: the server answered {reply.status} to /seed_session")
        if 400 <= reply.status < 500 and reply.status != 409:
            raise RequestFault(f"environment {self._name}: the server answered {reply.status} to /seed_session")
        self._check(reply, "seed_session")
        return OpenedSession(_Session(calls, row, listed, rollout_uid, attempt), tools=tools)

    async def call(self, session: _Session, name: str, arguments: dict[str, Any]) -> StepAnswer:
        """Posts the arguments to the tool's route."""
        answered, session.answered = session.answered, None
        reply = await session.calls.post(name, arguments)
        if reply.status not in SAID_TO_POLICY:
            self._check(reply, name)
        session.answered = None if answered is None else answered + (reply.status < 400)
        self._check_calls(session, reply, name)
        document = reply.document() if self._server.done_flag else None
        return StepAnswer(reply.text, done=isinstance(document, dict) and document.get("done") is True)

    async def score(self, session: _Session, transcript: Sequence[dict[str, Any]]) -> SessionScore:
        """Has the server verify the transcript."""
        response = {
            "id": f"resp_{session.uid}",
            "object": "response",
            "created_at": time.time(),
            "model": "policy",
            "output": output_items(transcript),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": session.tools,
        }
        reply = await session.calls.post("verify", {**session.row, "response": response})
        self._check(reply, "verify")
        self._check_calls(session, reply, "verify")
        document = reply.document()
        if not isinstance(document, dict) or "reward" not in document:
            raise EnvironmentFault(f"environment {self._name}: /verify answered without a reward", retryable=False)
        if document.get("mask_sample") is True:
            kind = str(document.get("failure_kind"))[:100]
            raise EnvironmentFault(f"environment {self._name}: /verify says that its reward measures nothing ({kind})")
        return SessionScore(document["reward"], document.get("reward_components") or {})

    async def close(self, session: _Session) -> None:
        """Tells the server; one that has no such route lets the session expire."""
        ids = {"resources_session_id": f"{session.uid}-{session.attempt}", "episode_id": session.uid}
        await session.calls.post("close_session", ids)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()

    def _definition(self, tool: Any) -> ToolDefinition:
        try:
            # The Responses API has these fields beside `type`; some data sets have the form of chat completions.
            fields = tool.get("function", tool)
            function = ToolFunction.model_validate({name: value for name, value in fields.items() if value is not None})
        except (ValidationError, AttributeError):
            raise RequestFault(f"environment {self._name}: a tool of the task is no definition of a function") from None
        if not TOOL_NAME.fullmatch(function.name) or function.name in RESERVED:
            raise RequestFault(f"environment {self._name}: a tool cannot be called {function.name[:100]!r}")
        return ToolDefinition(function=function)

    def _check_calls(self, session: _Session, reply: ServerReply, path: str) -> None:
        said = reply.headers.get(SESSION_CALLS)
        if said is None or session.answered is None:
            return
        try:
            counted = int(said)
        except ValueError:
            why = f"{SESSION_CALLS} of /{path} is no number"
            raise EnvironmentFault(f"environment {self._name}: {why}", retryable=False) from None
        if counted != session.answered:
            raise EnvironmentLost(
                f"environment {self._name}: at /{path} the server had answered {counted} calls of this session, and "
                f"{session.answered} were made; has it lost the session?",
                retryable=True,
            )

    def _check(self, reply: ServerReply, path: str) -> None:
        if reply.status == 409:
            raise EnvironmentFault(f"environment {self._name}: this attempt is over, says /{path}", retryable=False)
        if reply.status >= 400:
            raise EnvironmentFault(f"environment {self._name}: the server answered {reply.status} to /{path}")
