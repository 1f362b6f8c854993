"""The MCP SDK, version 1 (from 1.27) or 2, as one client: connect, list the tools, call one.

What differs between the two is here and nowhere else: names of fields, how a time limit is written, and which httpx
they speak (httpx in version 1, httpx2 in version 2). Both send over our `connections`, with their rules: the SDK would
follow redirects within a host.

A connection belongs to the task that entered it: the SDK's task group must be left where it was entered. So each one
lives in a task of its own, which takes calls one by one (`McpConnection`).

The protocol of 2026-07-28 has no sessions. Only where an environment declares that it is `stateless`, it may be spoken;
otherwise the SDK makes the handshake that opens a session.
"""

import asyncio
import importlib
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TextIO, TypeVar

import httpx
import orjson

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.protocol.content import content_fault
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.plugins import PluginBroken

T = TypeVar("T")

MOST_PAGES = 100
"""Of a list of tools."""


@dataclass(frozen=True)
class McpTool:
    """A tool as its server describes it."""

    definition: ToolDefinition
    repeatable: bool
    """Whether its hints say that calling it twice does no harm."""


@dataclass(frozen=True)
class McpToolAnswer:
    """Holds what a tool has answered."""

    text: str
    is_error: bool


class McpClient(Protocol):
    """A connected client."""

    async def tools(self) -> list[McpTool]:
        """Reads the whole list of tools."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> McpToolAnswer:
        """Calls a tool, once, for so many seconds at the most."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[McpClient]]
"""Makes a connection, which is to be left in the task that entered it."""


def check_installed() -> None:
    """Raises `PluginBroken` where the SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise PluginBroken("MCP servers need the SDK: pip install 'mcp>=1.27,<3'")


def http_client(url: str, headers: Mapping[str, str], connections: ServerConnections, *, sessions: bool) -> Connect:
    """Prepares connections to a server behind a URL (streamable HTTP)."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[McpClient]:
        streamable = importlib.import_module("mcp.client.streamable_http")
        # The module that this version of the SDK speaks, whichever it is.
        library = getattr(streamable, "httpx2", None) or streamable.httpx
        client = library.AsyncClient(
            transport=_checked_transport(library, connections),
            headers={name: value.encode() for name, value in headers.items()},
            # The connections have limits of their own.
            timeout=None,
            follow_redirects=False,
            trust_env=False,
        )
        async with client, _opened(streamable.streamable_http_client(url, http_client=client), sessions) as opened:
            yield opened

    return connect


def stdio_client(command: str, arguments: list[str], env: Mapping[str, str], *, sessions: bool) -> Connect:
    """Prepares servers that are processes of their own, one for each connection."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[McpClient]:
        stdio = importlib.import_module("mcp.client.stdio")
        server = stdio.StdioServerParameters(command=command, args=arguments, env=dict(env))
        with _error_log() as errors:
            async with _opened(stdio.stdio_client(server, errlog=errors), sessions) as opened:
                yield opened

    return connect


def _error_log() -> TextIO:
    """Opens what a command's server writes its errors to: the worker's own standard error.

    The SDK would pass on `sys.stderr`. In a worker Celery has put a proxy there, which no process can inherit.
    """
    try:
        return os.fdopen(os.dup(2), "w", encoding="utf-8")
    except OSError:
        # A service may be started without one.
        return open(os.devnull, "w", encoding="utf-8")


@asynccontextmanager
async def _opened(transport: Any, sessions: bool) -> AsyncIterator[McpClient]:
    sdk: Any = importlib.import_module("mcp")
    async with AsyncExitStack() as stack:
        if hasattr(sdk, "Client"):
            client = sdk.Client(transport, mode="legacy" if sessions else "auto", cache=None)
            yield _Client(await stack.enter_async_context(client), seconds=float)
        else:
            read, write, *_ = await stack.enter_async_context(transport)
            session = await stack.enter_async_context(sdk.ClientSession(read, write))
            await session.initialize()
            yield _Client(session, seconds=lambda number: timedelta(seconds=number))


class _Client:
    """A connected client of either version."""

    def __init__(self, client: Any, *, seconds: Callable[[float], Any]) -> None:
        self._client = client
        self._seconds = seconds

    async def tools(self) -> list[McpTool]:
        found: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._client.list_tools(**({} if cursor is None else {"cursor": cursor}))
            found += map(_tool, page.tools)
            cursor = _field(page, "next_cursor", "nextCursor")
            if cursor is None:
                return found
        raise EnvironmentFault(f"its list of tools has more than {MOST_PAGES} pages", retryable=False)

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> McpToolAnswer:
        result = await self._client.call_tool(name, arguments, read_timeout_seconds=self._seconds(seconds))
        parts = [{"type": part.type, "text": getattr(part, "text", None)} for part in result.content]
        if (fault := content_fault(parts)) is not None:
            return McpToolAnswer(f"{name} returned {fault}", is_error=True)
        texts = [part["text"] for part in parts]
        structured = _field(result, "structured_content", "structuredContent")
        if not texts and structured is not None:
            texts = [orjson.dumps(structured).decode()]
        return McpToolAnswer("\n".join(texts), bool(_field(result, "is_error", "isError")))


def _field(thing: Any, *names: str) -> Any:
    """Returns the first of these fields that there is: version 2 writes them in another way than version 1."""
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)


def _tool(tool: Any) -> McpTool:
    function = ToolFunction(
        name=tool.name, description=tool.description or "", parameters=_field(tool, "input_schema", "inputSchema")
    )
    hints = tool.annotations
    safe = hints is not None and (
        _field(hints, "read_only_hint", "readOnlyHint") or _field(hints, "idempotent_hint", "idempotentHint")
    )
    return McpTool(ToolDefinition(function=function), repeatable=bool(safe))


def _checked_transport(library: Any, connections: ServerConnections) -> Any:
    """Makes a transport of the library's own class, which sends over our connections."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, response: httpx.Response) -> None:
            self._response = response

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in self._response.aiter_raw():
                    yield part
            except httpx.HTTPError as error:
                raise library.ReadError(str(error)) from error

        async def aclose(self) -> None:
            await self._response.aclose()

    class Checked(library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            asked = httpx.Request(
                request.method, str(request.url), headers=request.headers.raw, content=await request.aread()
            )
            try:
                response = await connections.send(asked)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise library.ConnectError(str(error)) from error
            except httpx.HTTPError as error:
                raise library.ReadError(str(error)) from error
            return library.Response(
                response.status_code, headers=response.headers.raw, stream=Body(response), request=request
            )

    return Checked()


class McpConnection:
    """A connection in a task of its own, for one session."""

    def __init__(self, connect: Connect) -> None:
        """Connects to nothing yet."""
        self._connect = connect
        self._asked: asyncio.Queue[tuple[str, dict[str, Any], float, asyncio.Future[McpToolAnswer]] | None]
        self._asked = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether it was open, and is not any more, or is about to end."""
        return self._task is not None and (self._task.done() or self._task.cancelling() > 0)

    async def open(self) -> list[McpTool]:
        """Connects, and returns the server's tools; raises whatever the SDK raises."""
        ready: asyncio.Future[list[McpTool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready))
        return await self._until_answered(ready)

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> McpToolAnswer:
        """Calls a tool, once."""
        if self._task is None or self._task.done():
            raise ConnectionError("the connection has ended")
        answer: asyncio.Future[McpToolAnswer] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((name, arguments, seconds, answer))
        return await self._until_answered(answer)

    async def close(self) -> None:
        """Ends the session on the server, and the connection; harmless when repeated."""
        if self._task is not None:
            self._asked.put_nowait(None)
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                self._task.cancel()
                raise

    async def _until_answered(self, future: "asyncio.Future[T]") -> T:
        assert self._task is not None
        ends: set[asyncio.Future[Any]] = {future, self._task}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The SDK tells the server that the call is over. What the session is worth then, its owner decides.
            self._task.cancel()
            raise
        if not future.done():
            raise ConnectionError("the connection has ended")
        return future.result()

    async def _live(self, ready: "asyncio.Future[list[McpTool]]") -> None:
        pending: asyncio.Future[Any] = ready
        try:
            async with self._connect() as client:
                pending.set_result(await client.tools())
                while (asked := await self._asked.get()) is not None:
                    name, arguments, seconds, pending = asked
                    try:
                        pending.set_result(await client.call(name, arguments, seconds))
                    # An error of one call need not be the connection's end.
                    except Exception as error:
                        pending.set_exception(error)
        except Exception as error:
            if not pending.done():
                pending.set_exception(error)
