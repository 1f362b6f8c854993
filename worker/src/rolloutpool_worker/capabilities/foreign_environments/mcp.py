"""MCP servers as environments: each rollout has a session of its own with the server.

- The server is the operator's: behind a URL, or a command that is started for each session. No rollout names either.
- Each request says for which rollout and attempt it is (`connections`); a command is told in its environment
  (`ROLLOUT_ID`, `ROLLOUT_ATTEMPT`). So a server can refuse an attempt that is over.
- The list of tools is read once, when the session is opened, and is the same from then on. Its digest is journaled.
- A call is made at most once. Where its answer is lost, the session has failed. Only in a `stateless` environment a
  tool whose hints say that it is read-only or idempotent is called once more, over a new connection; the others are not
  called again by a next attempt either (`OpenedSession.once`).
- What a tool says of its own failure (`isError`) is for the policy to read.

Task and seed of a rollout are not sent: MCP has no place for them.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.protocol.checks import CallbackUrl
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments import mcp_sdk
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections, attempt_headers
from rolloutpool_worker.capabilities.foreign_environments.mcp_sdk import Connect, McpConnection, McpTool, McpToolAnswer
from rolloutpool_worker.environments.base import Environment, OpenedSession, StepAnswer
from rolloutpool_worker.plugin_errors import PluginError

CALL_SECONDS = 600.0
"""The SDK's own limit of a call; that of the session is shorter."""


class McpServer(BaseModel):
    """One entry of the operator's file: a URL or a command."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: CallbackUrl | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    command: list[str] = Field(default_factory=list)
    """Program and arguments."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """For the command, which gets nothing of the worker's own."""
    crash: CrashEffect = CrashEffect.NONE
    places: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("needs either url or command")
        if self.crash is CrashEffect.SNAPSHOT:
            raise ValueError("an MCP server has no snapshots")
        return self


@dataclass
class _McpSession:
    connect: Connect
    connection: McpConnection
    tools: Mapping[str, McpTool]


class McpEnvironment(Environment):
    """One such server."""

    def __init__(
        self, name: str, server: McpServer, targets: Targets, connections: ServerConnections | None = None
    ) -> None:
        """Connects to nothing yet."""
        mcp_sdk.check_installed()
        self.crash = server.crash
        self.places = server.places
        self._name = name
        self._server = server
        self._connections = connections or ServerConnections(targets)

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Connects, and reads the list of tools."""
        connect = self._client(rollout_uid, attempt)
        connection = McpConnection(connect)
        try:
            found = await connection.open()
        except Exception as error:
            raise self._fault("no session", error) from error
        tools = {tool.definition.function.name: tool for tool in found}
        once: Set[str] = frozenset()
        if self.crash is CrashEffect.STATELESS:
            once = frozenset(name for name, tool in tools.items() if not tool.repeatable)
        session = _McpSession(connect, connection, tools)
        return OpenedSession(session, tools=[tool.definition for tool in found], once=once)

    async def call(self, session: _McpSession, name: str, arguments: dict[str, Any]) -> StepAnswer:
        """Calls a tool, at most once unless it may be repeated."""
        if self.crash is CrashEffect.STATELESS and session.connection.ended:
            # An earlier call took too long. There is no session that could be lost with the connection.
            await self._connect_again(session, name)
        try:
            answer = await session.connection.call(name, arguments, CALL_SECONDS)
        except Exception as error:
            if self.crash is not CrashEffect.STATELESS or not session.tools[name].repeatable:
                # A next attempt has another session, in which the call was not made; without sessions it was.
                fault = self._fault(f"{name} was not answered", error)
                fault.retryable = self.crash is not CrashEffect.STATELESS
                raise fault from error
            answer = await self._call_again(session, name, arguments)
        text = f"Error: {answer.text}" if answer.is_error else answer.text
        return StepAnswer(text)

    async def _connect_again(self, session: _McpSession, name: str) -> None:
        await session.connection.close()
        session.connection = McpConnection(session.connect)
        try:
            await session.connection.open()
        except Exception as error:
            raise self._fault(f"no connection for {name}", error) from error

    async def _call_again(self, session: _McpSession, name: str, arguments: dict[str, Any]) -> McpToolAnswer:
        await self._connect_again(session, name)
        try:
            return await session.connection.call(name, arguments, CALL_SECONDS)
        except Exception as error:
            raise self._fault(f"{name} was not answered twice", error) from error

    async def close(self, session: _McpSession) -> None:
        """Ends the session on the server."""
        await session.connection.close()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()

    def _client(self, rollout_uid: str, attempt: int) -> Connect:
        server, sessions = self._server, self.crash is not CrashEffect.STATELESS
        if server.url is None:
            program, *arguments = server.command
            env = {**server.env, "ROLLOUT_ID": rollout_uid, "ROLLOUT_ATTEMPT": str(attempt)}
            return mcp_sdk.stdio_client(program, arguments, env, sessions=sessions)
        headers = attempt_headers(server.headers, rollout_uid, attempt)
        return mcp_sdk.http_client(server.url, headers, self._connections, sessions=sessions)

    def _fault(self, what: str, error: BaseException) -> EnvironmentFault:
        raised = PluginError.of(error)
        raised.log(f"environment {self._name}")
        return EnvironmentFault(f"environment {self._name}: {what}: {raised}")
