"""Protocol v1's `tool_server_url`: an MCP server that the rollout names. Off without `ROLLOUTPOOL_V1_TOOL_SERVERS`.

It is used as an operator's MCP server is (`mcp`): a session per rollout, a frozen list of tools, each call at most
once. What differs is that nobody vouches for it:

1. The API has checked the URL's host when the rollout was submitted. It is checked again here, and by its address at
   each connection; a refusal ends the rollout as `target_refused`. No redirect is followed.
2. Nothing is known of what a crash does to its sessions. So they are lost with their worker (`none`).
3. It gets no headers of the operator's, only rollout and attempt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rolloutpool_common.errors import EnvironmentFault, RequestFault, TargetRefused
from rolloutpool_common.protocol.checks import check_callback_host
from rolloutpool_common.protocol.environments import TOOL_SERVER
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments import mcp_sdk
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpEnvironment, McpServer
from rolloutpool_worker.environments.base import Environment, OpenedSession, StepAnswer


@dataclass(frozen=True)
class _ToolServerSession:
    server: McpEnvironment
    inner: Any
    """As the server's environment knows it."""


class ToolServers(Environment):
    """All servers that rollouts name; the task of each is the URL."""

    def __init__(self, targets: Targets) -> None:
        """Connects to nothing yet."""
        mcp_sdk.check_installed()
        self._targets = targets
        self._connections = ServerConnections(targets)

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Opens a session with the rollout's server."""
        try:
            url = check_callback_host(str(task))
        except ValueError:
            raise RequestFault(f"{TOOL_SERVER} must be an HTTP/HTTPS URL with a host") from None
        if verdict := self._targets.refuse_url(url):
            raise TargetRefused(f"{TOOL_SERVER}: {verdict}")
        server = McpEnvironment(TOOL_SERVER, McpServer(url=url), self._targets, self._connections)
        try:
            opened = await server.open(None, seed, rollout_uid, attempt)
        except EnvironmentFault as fault:
            for cause in _causes(fault.__cause__):
                if isinstance(cause, TargetRefused):
                    raise TargetRefused(f"{TOOL_SERVER}: {cause.message}") from None
            raise
        return replace(opened, session=_ToolServerSession(server, opened.session))

    async def call(self, session: _ToolServerSession, name: str, arguments: dict[str, Any]) -> StepAnswer:
        """Calls a tool, at most once."""
        return await session.server.call(session.inner, name, arguments)

    async def close(self, session: _ToolServerSession) -> None:
        """Ends the session on the server."""
        await session.server.close(session.inner)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error with all that led to it: the SDK puts what a transport raises into groups, or into errors of its own."""
    if error is None:
        return
    yield error
    for inside in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _causes(inside)
    yield from _causes(error.__cause__ or error.__context__)
