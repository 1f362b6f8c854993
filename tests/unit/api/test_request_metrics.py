"""Requests are counted by the template of their route, and those that wait without their seconds."""

import asyncio
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message

from rolloutpool_api.request_metrics import RequestMetrics
from rolloutpool_common.process.metrics import take_rows


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    """Other tests of this process observe the same metrics."""
    take_rows()
    yield
    take_rows()


def application() -> FastAPI | Starlette:
    app = FastAPI()

    @app.get("/v1/batches/{batch_id}")
    async def batch(batch_id: str) -> Response:
        return PlainTextResponse(batch_id)

    @app.get("/v1/fails")
    async def fails() -> Response:
        raise KeyError

    @app.get("/v1/batches/{batch_id}/events")
    async def events(batch_id: str, request: Request) -> Response:
        return PlainTextResponse(batch_id)

    app.add_middleware(RequestMetrics)
    return app


async def ask(path: str, method: str = "GET", query: bytes = b"") -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Message) -> None:
        await asyncio.sleep(0)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
    with_rest = {**scope, "headers": [], "scheme": "http", "server": ("t", 1), "http_version": "1.1", "root_path": ""}
    try:
        await application()(with_rest, receive, send)
    except KeyError:
        assert path == "/v1/fails"


async def test_a_request_is_named_by_its_route() -> None:
    for batch_id in range(100):
        await ask(f"/v1/batches/b{batch_id}")
    await ask("/v1/fails")
    await ask("/no/such/path")
    await ask("/v1/fails", method="X" * 1000)
    await ask("/v1/batches", method="POST")
    rows = {field: n for _, field, n in take_rows() if field.startswith("http_requests|")}
    assert rows == {
        "http_requests|/v1/batches/{batch_id}|GET|200": 100,
        "http_requests|/v1/fails|GET|500": 1,
        "http_requests|none|GET|404": 1,
        "http_requests|/v1/fails|other|405": 1,
        "http_requests|/v1/batches|POST|404": 1,
    }


async def test_what_waits_is_counted_without_its_seconds() -> None:
    await ask("/v1/batches/b", query=b"wait=30")
    await ask("/v1/batches/b/events")
    rows = [field for _, field, _ in take_rows()]
    assert sum(field.startswith("http_requests|") for field in rows) == 2
    assert not [field for field in rows if field.startswith("http_request_seconds|")]
