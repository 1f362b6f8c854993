"""A client that sends slowly, or stops, costs nobody else anything; one that is slow and honest is served."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest
from structlog.testing import capture_logs
from tests.support.api_requests import batch
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until_true

from rolloutpool_api import body, waiting_heads

HALF_HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: "


async def connect(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = api.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def half_body(path: str, size: int = 1000) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n{" % (path.encode(), size)


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The status line, and the body, of an answer after which the connection is closed."""
    async with asyncio.timeout(20):
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], content


async def test_a_thousand_half_heads_of_one_client_shut_nobody_out(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many as where a process may open 256 files.
    monkeypatch.setattr(waiting_heads, "CROWD", 64)
    async with running_api(redis_url) as api, client_of(api) as client:
        opened = [await connect(api) for _ in range(1100)]
        for _, writer in opened:
            writer.write(HALF_HEAD)
        # Less than the half heads may take, or their end would be what lets the client in.
        async with asyncio.timeout(9):
            assert (await client.get("/health")).status_code == 200

        def thinned_out() -> bool:
            return sum(reader.at_eof() or len(reader._buffer) > 0 for reader, _ in opened) >= 1000  # type: ignore[attr-defined]

        await until_true(thinned_out, 10)
        for _, writer in opened:
            writer.close()


async def test_a_half_head_gets_408_and_a_silent_connection_is_closed(redis_url: str) -> None:
    async with running_api(redis_url, head_seconds=0.3) as api:
        reader, writer = await connect(api)
        silent, other = await connect(api)
        writer.write(HALF_HEAD)
        status, content = await answer(reader)
        assert status == b"HTTP/1.1 408 Request Timeout"
        assert json.loads(content)["error"]["message"]
        assert await silent.read() == b""
        writer.close()
        other.close()


HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "end", "rest"),
    [(HEALTH, b"}", HALF_HEAD), (HEALTH, b"}", b"\r\n"), (half_body("/v1/nothing"), b"}}", b" ")],
    ids=["half a head", "no head", "the rest of a body that is not read"],
)
async def test_what_follows_on_a_connection_has_a_time_limit_too(
    redis_url: str, first: bytes, end: bytes, rest: bytes
) -> None:
    async with running_api(redis_url, head_seconds=0.3) as api:
        reader, writer = await connect(api)
        writer.write(first)
        assert (b"200 OK" if first == HEALTH else b"404") in await reader.readuntil(end)
        writer.write(rest)
        assert (await answer(reader))[0] == b"HTTP/1.1 408 Request Timeout"
        writer.close()


async def test_an_idle_connection_is_closed_and_a_request_under_way_is_not(
    redis_url: str, worker: ScriptedWorker
) -> None:
    async with running_api(redis_url, head_seconds=0.3) as api, client_of(api) as client:
        batch_id = (await client.post("/v1/batches", json=batch())).json()["batch_id"]
        api.server.config.timeout_keep_alive = 1
        reader, writer = await connect(api)
        writer.write(b"GET /v1/batches/%s/results?wait=2 HTTP/1.1\r\nhost: localhost\r\n\r\n" % batch_id.encode())
        assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
        writer.close()


@pytest.fixture
async def impatient(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(body, "GRACE_SECONDS", 0.5)
    async with running_api(redis_url) as api:
        yield api


async def test_a_half_body_gets_408_and_is_one_line(impatient: Api, worker: ScriptedWorker) -> None:
    for large in [False, True]:
        for path, size in [("/v1/batches", 1000), ("/rollout", 1000), ("/v1/preflight", 1000)]:
            if large and path == "/v1/preflight":
                continue
            with capture_logs() as logged:
                reader, writer = await connect(impatient)
                writer.write(half_body(path, 20_000_000 if large else size))
                status, content = await answer(reader)
                await asyncio.sleep(0.2)
                writer.close()
            assert status == b"HTTP/1.1 408 Request Timeout"
            refusal = json.loads(content)
            assert "ROLLOUTPOOL_MIN_UPLOAD_KB" in (
                refusal["detail"] if path == "/rollout" else refusal["error"]["message"]
            )
            lines = [line for line in logged if line["event"] not in ("redis setting", "reconciled")]
            assert lines == [{"event": "body came too slowly", "log_level": "info", "path": path, "received": 1}]


@pytest.mark.slow
async def test_a_slow_and_honest_upload_of_20_mb_is_taken(impatient: Api, worker: ScriptedWorker) -> None:
    content = orjson.dumps(batch(1, rollouts=[{"messages": [{"role": "user", "content": "y" * 20_000_000}]}]))

    async def slowly() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 500_000):
            yield content[start : start + 500_000]
            await asyncio.sleep(0.1)

    async with client_of(impatient) as client:
        start = time.perf_counter()
        response = await client.post(
            "/v1/batches",
            content=slowly(),
            headers={"content-type": "application/json", "content-length": str(len(content))},
        )
        assert time.perf_counter() - start > 4
    assert response.status_code == 202


async def test_expect_100_continue_is_answered_before_the_body_must_come(client: httpx.AsyncClient, api: Api) -> None:
    reader, writer = await connect(api)
    writer.write(
        b"POST /v1/batches HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2000000\r\n\r\n"
    )
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.close()
