"""A connection in a task of its own; what needs the SDK itself is in tests/environments."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments import mcp_sdk
from rolloutpool_worker.capabilities.foreign_environments.connections import MOST_REPLY_BYTES, ServerConnections
from rolloutpool_worker.capabilities.foreign_environments.mcp_sdk import McpConnection, McpToolAnswer


class Sdk:
    """Stands in for a connected client; knows in which task it was entered and left."""

    def __init__(self, **does: Any) -> None:
        self.does = does
        self.tasks: list[Any] = []
        self.hangs = asyncio.Event()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator["Sdk"]:
        self.tasks.append(asyncio.current_task())
        try:
            yield self
        finally:
            self.tasks.append(asyncio.current_task())

    async def tools(self) -> list[Any]:
        return []

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> McpToolAnswer:
        what = self.does.get(name)
        if isinstance(what, BaseException):
            raise what
        if name == "hang":
            self.hangs.set()
            await asyncio.Event().wait()
        return McpToolAnswer(name, is_error=False)


async def test_it_is_left_in_the_task_that_entered_it() -> None:
    sdk = Sdk()
    connection = McpConnection(sdk.connect)
    assert await connection.open() == []
    assert await connection.call("a", {}, 1.0) == McpToolAnswer("a", is_error=False)
    closing = asyncio.create_task(connection.close())
    await closing
    await connection.close()
    entered, left = sdk.tasks
    assert entered is left
    assert entered not in (asyncio.current_task(), closing)
    with pytest.raises(ConnectionError):
        await connection.call("a", {}, 1.0)


async def test_one_that_was_never_opened_is_closed_and_not_called() -> None:
    connection = McpConnection(Sdk().connect)
    await connection.close()
    with pytest.raises(ConnectionError):
        await connection.call("a", {}, 1.0)


async def test_a_connection_that_ends_in_a_call_answers_it() -> None:
    """The SDK's task group may cancel the task, and not say why."""
    connection = McpConnection(Sdk(dies=asyncio.CancelledError()).connect)
    await connection.open()
    with pytest.raises(ConnectionError):
        await connection.call("dies", {}, 1.0)
    await connection.close()


async def test_a_caller_that_leaves_ends_the_connection_and_does_not_wait() -> None:
    sdk = Sdk()
    connection = McpConnection(sdk.connect)
    await connection.open()
    call = asyncio.create_task(connection.call("hang", {}, 60.0))
    await sdk.hangs.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await connection.close()
    assert len(sdk.tasks) == 2


def page(names: list[str], cursor: str | None, *, version: int) -> Any:
    schema = {"type": "object"}
    hints = SimpleNamespace(**({"readOnlyHint": True} if version == 1 else {"read_only_hint": True}))
    form = "inputSchema" if version == 1 else "input_schema"
    tools = [
        SimpleNamespace(name=name, description=None, annotations=hints if name == "a" else None, **{form: schema})
        for name in names
    ]
    return SimpleNamespace(tools=tools, **{"nextCursor" if version == 1 else "next_cursor": cursor})


@pytest.mark.parametrize("version", [1, 2])
async def test_all_pages_of_the_list_are_read_in_either_version(version: int) -> None:
    class Pages:
        async def list_tools(self, cursor: str | None = None) -> Any:
            return page(["a"], "more", version=version) if cursor is None else page(["b"], None, version=version)

    found = await mcp_sdk._Client(Pages(), seconds=float).tools()
    assert [(tool.definition.function.name, tool.repeatable) for tool in found] == [("a", True), ("b", False)]
    assert found[0].definition.function.parameters == {"type": "object"}


async def test_an_endless_list_is_cut_off() -> None:
    class Endless:
        async def list_tools(self, cursor: str | None = None) -> Any:
            return page(["a"], "more", version=2)

    with pytest.raises(EnvironmentFault, match="more than 100 pages"):
        await mcp_sdk._Client(Endless(), seconds=float).tools()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [SimpleNamespace(type="text", text="a"), SimpleNamespace(type="text", text="b")]}, "a\nb"),
        (
            {"content": [SimpleNamespace(type="text", text="a"), SimpleNamespace(type="image", data="AAAA")]},
            "a returned content[1]: type image; only text is supported",
        ),
        ({"content": [], "structuredContent": {"n": 1}}, '{"n":1}'),
        ({"content": [], "structured_content": {"n": 1}}, '{"n":1}'),
        ({"content": []}, ""),
    ],
)
@pytest.mark.parametrize("field", ["isError", "is_error"])
async def test_what_is_shown_of_a_result(result: dict[str, Any], text: str, field: str) -> None:
    class Answering:
        async def call_tool(self, name: str, arguments: Any, read_timeout_seconds: float) -> Any:
            return SimpleNamespace(**result, **{field: True})

    assert await mcp_sdk._Client(Answering(), seconds=float).call("a", {}, 1.0) == McpToolAnswer(text, is_error=True)


class Ours(httpx.AsyncBaseTransport):
    """Answers as the test says."""

    def __init__(self, answer: httpx.Response | Exception) -> None:
        self.answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def answering(answer: httpx.Response | Exception) -> ServerConnections:
    """Connections over which this comes."""
    connections = ServerConnections(Targets.none())
    connections._transport = Ours(answer)  # type: ignore[assignment]
    return connections


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(302, headers={"Location": "/elsewhere"}), httpx.ReadError),
        (httpx.Response(200, stream=httpx.ByteStream(b"x" * (MOST_REPLY_BYTES + 1))), httpx.ReadError),
        (httpx.ConnectError("no"), httpx.ConnectError),
        (httpx.RemoteProtocolError("no"), httpx.ReadError),
    ],
)
async def test_redirects_and_long_replies_are_errors_in_the_words_of_the_sdks_library(
    answer: httpx.Response | Exception, error: type[Exception]
) -> None:
    transport = mcp_sdk._checked_transport(httpx, answering(answer))
    async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
        with pytest.raises(error):
            await client.get("http://127.0.0.1:9/mcp")


async def test_a_reply_passes_through() -> None:
    answer = httpx.Response(200, headers={"A": "b"}, stream=httpx.ByteStream(b"fine"))
    transport = mcp_sdk._checked_transport(httpx, answering(answer))
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.post("http://127.0.0.1:9/mcp", content=b"{}")
    assert (response.text, response.headers["a"]) == ("fine", "b")
