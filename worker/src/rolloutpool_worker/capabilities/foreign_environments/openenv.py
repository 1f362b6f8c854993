"""OpenEnv environments: a server keeps a session for each WebSocket connection.

| the pool | the server (`/ws`) |
|---|---|
| opens a session | connects; `reset` with the task, the seed, and rollout and attempt as `episode_id` |
| passes a call or a message on | `step` with an action |
| closes the session | `close`; the server frees the session, and closes the connection |

An action is one of three things:

- In an environment of MCP tools (`tools/list` shows them) a call of a tool: `{"type": "call_tool", ...}`.
- In another environment the arguments of the one tool `step`, whose schema is the server's (`/schema`).
- With `action_field` in the operator's file each message of the policy is an action: `{"message": "..."}`, say.

The policy reads the observation as JSON without its metadata, or one field of it (`observation_field`), and of a tool
its text. The score is the sum of the rewards.

What an error of the server means:

- `CAPACITY_REACHED`: it is full, and the rollout waits.
- `VALIDATION_ERROR`: of `reset`, the task is wrong; of `step`, the policy reads what is wrong with its action.
- Every other code, and each answer of another form: the environment has failed.

The server knows no attempts. It frees the session of a worker that was killed when the connection ends: at once, or
when it misses the answers to its pings.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import Field, ValidationError, field_validator

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_common.protocol.content import content_fault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections, attempt_headers
from rolloutpool_worker.capabilities.foreign_environments.server_calls import ServerCalls, ServerEntry
from rolloutpool_worker.capabilities.foreign_environments.websocket import SessionSocket
from rolloutpool_worker.environments.base import Environment, EnvironmentFull, OpenedSession, SessionScore, StepAnswer
from rolloutpool_worker.tools import ToolFailed

_log = logging.getLogger(__name__)

GOODBYE = {"type": "close"}
NO_TOOLS = "does not support MCP"
"""In what a server answers to `tools/list` if its environment has no tools; it has no code of its own."""
IN_DOUBT = frozenset({"timeout", "transport_error"})
"""Failures of a tool that leave open what it has done."""
MOST_LOGGED = 500
"""Characters of a server's message."""


class OpenEnvServer(ServerEntry):
    """One entry of the operator's file."""

    action_field: str | None = Field(default=None, min_length=1)
    """Of an action, which gets each message of the policy; without it the policy calls tools."""
    observation_field: str | None = Field(default=None, min_length=1)
    """Of an observation, which the policy reads; without it, all of them."""

    @field_validator("crash")
    @classmethod
    def _crash(cls, value: CrashEffect) -> CrashEffect:
        # The score is the sum of what one session has given, so a session that others follow cannot say it.
        if value not in (CrashEffect.RESTARTABLE, CrashEffect.NONE):
            raise ValueError("an OpenEnv server is `restartable` or `none`")
        return value


@dataclass
class _OpenEnvSession:
    socket: SessionSocket
    has_tools: bool = False
    """Whether its actions are calls of MCP tools."""
    rewards: list[float] = field(default_factory=list)


class OpenEnvEnvironment(Environment):
    """One such server."""

    def __init__(self, name: str, server: OpenEnvServer, targets: Targets) -> None:
        """Connects to nothing yet."""
        self.crash = server.crash
        self.places = server.places
        self.by_text = server.action_field is not None
        self._name = name
        self._server = server
        self._connections = ServerConnections(targets)

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Connects, resets, and finds out what the policy may do."""
        if task is not None and not isinstance(task, dict):
            raise RequestFault(f"environment {self._name}: its task is an object, which is passed to `reset`")
        data = {**(task or {}), "episode_id": f"{rollout_uid}-{attempt}"}
        if seed is not None:
            data["seed"] = seed
        calls = ServerCalls(self._connections, self._server.url, self._server.headers, rollout_uid, attempt)
        headers = attempt_headers(self._server.headers, rollout_uid, attempt)
        session = _OpenEnvSession(SessionSocket(self._connections, f"{self._server.url}/ws", headers))
        try:
            await session.socket.open()
            first = await self._act(session, "reset", data)
            if first.done:
                raise EnvironmentFault(f"environment {self._name}: the episode was over at once", retryable=False)
            tools = () if self.by_text else await self._tools(session, calls)
        except BaseException:
            await session.socket.close(GOODBYE)
            raise
        messages = [{"role": "user", "content": first.content}] if first.content else []
        return OpenedSession(session, messages=messages, tools=tools)

    async def call(self, session: _OpenEnvSession, name: str, arguments: dict[str, Any]) -> StepAnswer:
        """Steps with a call of a tool, or with the arguments as the action."""
        called = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        return await self._act(session, "step", called if session.has_tools else arguments)

    async def step(self, session: _OpenEnvSession, text: str) -> StepAnswer:
        """Steps with the message as the action."""
        assert self._server.action_field is not None
        return await self._act(session, "step", {self._server.action_field: text})

    async def score(self, session: _OpenEnvSession, transcript: Sequence[dict[str, Any]]) -> SessionScore | None:
        """Adds the rewards up; none where no step had one."""
        del transcript
        return SessionScore(sum(session.rewards)) if session.rewards else None

    async def close(self, session: _OpenEnvSession) -> None:
        """Has the server free the session, and ends the connection."""
        await session.socket.close(GOODBYE)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()

    async def _ask(self, session: _OpenEnvSession, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        answer = await session.socket.ask({"type": kind, "data": data})
        said = answer.get("data")
        if not isinstance(said, dict):
            raise self._odd(kind)
        if answer.get("type") == "error":
            raise self._refusal(kind, said)
        if answer.get("type") != ("mcp" if kind == "mcp" else "observation"):
            raise self._odd(kind)
        return said

    def _refusal(self, kind: str, error: dict[str, Any]) -> Exception:
        code = str(error.get("code"))[:40]
        if code == "CAPACITY_REACHED":
            return EnvironmentFull(f"environment {self._name}: the server has no room for another session")
        if code == "VALIDATION_ERROR" and kind == "reset":
            return RequestFault(f"environment {self._name}: the server refuses the task")
        if code == "VALIDATION_ERROR" and kind == "step":
            return ToolFailed(f"this is no action: {_faults(error.get('errors'))}")
        # Its text stays here: it could quote what the rollout says.
        _log.warning("environment %s: %s to %s: %.*s", self._name, code, kind, MOST_LOGGED, error.get("message"))
        return EnvironmentFault(f"environment {self._name}: the server answered {code} to {kind}")

    def _odd(self, kind: str) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self._name}: the answer to {kind} has another form", retryable=False)

    async def _act(self, session: _OpenEnvSession, kind: str, data: dict[str, Any]) -> StepAnswer:
        said = await self._ask(session, kind, data)
        observation, reward, done = said.get("observation"), said.get("reward"), said.get("done")
        if (
            not isinstance(observation, dict)
            or not isinstance(reward, int | float | None)
            or not isinstance(done, bool)
        ):
            raise self._odd("step")
        metadata = said.get("metadata", observation.get("metadata"))
        seen = {key: value for key, value in observation.items() if key != "metadata"}
        if session.has_tools and "tool_name" in seen:
            text = self._text_of_tool(seen.get("result"), seen.get("error"))
        else:
            text = self._text(seen, kind)
        number = None if reward is None else float(reward)
        # That of a reset is none of the policy's.
        if number is not None and kind == "step":
            session.rewards.append(number)
        return StepAnswer(text, number, done, metadata if isinstance(metadata, dict) else {})

    def _text(self, seen: dict[str, Any], kind: str) -> str:
        shown = self._server.observation_field
        # Before the first action there may be nothing to see yet.
        if kind == "reset" and not (seen if shown is None else shown in seen):
            return ""
        if shown is None:
            return _text_of(seen)
        if shown not in seen:
            raise EnvironmentFault(f"environment {self._name}: an observation has no field {shown}", retryable=False)
        return _text_of(seen[shown])

    def _text_of_tool(self, result: Any, error: Any) -> str:
        if isinstance(error, dict):
            if error.get("error_type") in IN_DOUBT:
                raise EnvironmentFault(f"environment {self._name}: a tool ended with {error['error_type']}")
            return f"Error: {error.get('message')}"
        content = result.get("content") if isinstance(result, dict) else None
        if not isinstance(content, list):
            return _text_of(result)
        if (fault := content_fault(content)) is not None:
            raise EnvironmentFault(f"environment {self._name}: a tool returned {fault}", retryable=False)
        texts = [part["text"] for part in content]
        failed = result.get("is_error") or result.get("isError")
        return ("Error: " if failed else "") + "\n".join(texts)

    async def _tools(self, session: _OpenEnvSession, calls: ServerCalls) -> list[ToolDefinition]:
        request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        said = await self._ask(session, "mcp", request)
        result, error = said.get("result"), said.get("error")
        listed = result.get("tools") if isinstance(result, dict) else None
        if isinstance(listed, list):
            session.has_tools = True
            return [self._definition(tool) for tool in listed]
        if isinstance(error, dict) and NO_TOOLS in str(error.get("message")):
            return [await self._step_tool(calls)]
        raise EnvironmentFault(f"environment {self._name}: the server did not list its tools")

    def _definition(self, tool: Any) -> ToolDefinition:
        try:
            parameters = tool.get("inputSchema") or tool.get("input_schema")
            function = ToolFunction(name=tool["name"], description=tool.get("description") or "", parameters=parameters)
        except (ValidationError, AttributeError, KeyError, TypeError):
            raise self._odd("tools/list") from None
        return ToolDefinition(function=function)

    async def _step_tool(self, calls: ServerCalls) -> ToolDefinition:
        """Describes the one tool of an environment whose actions have a form of their own."""
        document = (await calls.get("schema")).document()
        action = document.get("action") if isinstance(document, dict) else None
        properties = action.get("properties") if isinstance(action, dict) else None
        if not isinstance(action, dict) or not isinstance(properties, dict):
            raise self._odd("/schema")
        shown = {key: value for key, value in properties.items() if key != "metadata"}
        description = str(action.get("description") or "Acts in the environment")
        parameters = {**action, "properties": shown}
        return ToolDefinition(function=ToolFunction(name="step", description=description, parameters=parameters))


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _faults(errors: Any) -> str:
    """Returns what pydantic has found, without the input."""
    found = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    said = [f"{'.'.join(map(str, error.get('loc') or ()))}: {error.get('msg')}" for error in found[:10]]
    return "; ".join(said) or "the server does not say why"
