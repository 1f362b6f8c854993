"""An MCP server without the SDK, for tests of what our code does with one; real ones are in tests/environments."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.games import GUESS

from rolloutpool_worker.capabilities.foreign_environments import mcp_sdk
from rolloutpool_worker.capabilities.foreign_environments.mcp_sdk import McpTool, McpToolAnswer


@dataclass
class FakeMcp:
    """Stands in for the SDK and a server; counts connections and calls."""

    repeatable: bool = False
    fails: list[Exception] = field(default_factory=list)
    """What the next calls raise."""
    refuses: list[Exception] = field(default_factory=list)
    """What the next connections raise."""
    is_error: bool = False
    opened: int = 0
    closed: int = 0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    """Headers, or the environment of a command."""

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator["FakeMcp"]:
        if self.refuses:
            raise self.refuses.pop(0)
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    async def tools(self) -> list[McpTool]:
        return [McpTool(GUESS, self.repeatable)]

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> McpToolAnswer:
        self.calls.append((name, arguments))
        if name == "hang":
            await asyncio.Event().wait()
        if self.fails:
            raise self.fails.pop(0)
        return McpToolAnswer(f"answer {len(self.calls)}", self.is_error)


def fake_mcp(monkeypatch: pytest.MonkeyPatch) -> FakeMcp:
    """A server that each connection leads to, whatever it names."""
    fake = FakeMcp()

    def http(url: str, headers: dict[str, str], connections: Any, *, sessions: bool) -> Any:
        fake.told.append((url, headers, sessions))
        return fake.connect

    def stdio(command: str, arguments: list[str], env: dict[str, str], *, sessions: bool) -> Any:
        fake.told.append((command, arguments, env, sessions))
        return fake.connect

    monkeypatch.setattr(mcp_sdk, "check_installed", lambda: None)
    monkeypatch.setattr(mcp_sdk, "http_client", http)
    monkeypatch.setattr(mcp_sdk, "stdio_client", stdio)
    return fake
