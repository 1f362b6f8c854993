"""A real MCP server with state, of either version of the SDK; in a thread, or as a command that speaks over its pipes.

    python tests/environments/mcp_server.py

Its counter belongs to the session of the MCP connection. It can be slow, huge, failing, and end itself.
"""

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Any


def make_server() -> Any:
    """The server, with its tools."""
    counts: dict[object, int] = {}
    sdk: Any = importlib.import_module("mcp")
    annotations = importlib.import_module("mcp.types").ToolAnnotations
    if hasattr(sdk, "Client"):
        server = importlib.import_module("mcp.server.mcpserver").MCPServer("counter")
        context = importlib.import_module("mcp.server.mcpserver").Context
        hints = {"read_only_hint": True}
    else:
        fastmcp = importlib.import_module("mcp.server.fastmcp")
        server, context, hints = fastmcp.FastMCP("counter"), fastmcp.Context, {"readOnlyHint": True}

    async def add(ctx: Any, n: int) -> str:
        """Adds to the session's counter."""
        request = ctx.request_context.request
        # The session of the protocol, by its own id; a command has one session only.
        session = None if request is None else request.headers["mcp-session-id"]
        counts[session] = counts.get(session, 0) + n
        return f"counter {counts[session]}"

    # Both versions find the context by its annotation, which differs.
    add.__annotations__["ctx"] = context

    async def who() -> str:
        """Tells the rollout of a command."""
        return f"{os.environ.get('ROLLOUT_ID')} {os.environ.get('ROLLOUT_ATTEMPT')} {os.environ.get('HOME_SECRET')}"

    async def boom() -> str:
        """Raises"""
        raise ValueError("the fuse is out")

    async def sleep(seconds: float) -> str:
        """Sleeps."""
        await asyncio.sleep(seconds)
        return "slept"

    async def huge() -> str:
        """Says much."""
        return "x" * 20_000_000

    async def die() -> str:
        """Ends its process."""
        os._exit(3)

    async def mark(word: str, seconds: float) -> str:
        """Has an effect, and answers later."""
        _note(word)
        await asyncio.sleep(seconds)
        return word

    async def look(word: str, seconds: float) -> str:
        """The same, and says that calling it twice does no harm."""
        return await mark(word, seconds)

    async def complain() -> str:
        """Writes to its standard error."""
        print("the fuse is warm", file=sys.stderr, flush=True)
        return "complained"

    for tool in (add, who, boom, sleep, huge, die, mark, look, complain):
        server.tool(annotations=annotations(**hints) if tool in (who, look) else None)(tool)
    return server


def _note(word: str) -> None:
    with Path(os.environ["MCP_LOG"]).open("a") as log:
        log.write(f"{word}\n")


if __name__ == "__main__":
    make_server().run()
