"""What a door refuses, and what hostile programs can not do to others."""

import asyncio
import time
from pathlib import Path

import aiohttp
import httpx
import pytest
from cryptography.fernet import Fernet
from tests.support.harness import DoorProcess, LedPolicy, assert_all_once, client, running_door
from tests.support.open_sessions import opened
from tests.support.pool import Pool, opened_pool

from rolloutpool_common.rendering import ChatTokenizer


async def test_what_a_door_refuses(pool: Pool, door: DoorProcess, led_url: str) -> None:
    session = await opened(pool, door, led_url, max_calls=2, max_mb=0.01)
    other = await opened(pool, door, led_url)
    body = {"model": "m", "messages": [{"role": "user", "content": "do 0"}]}
    async with client(session.url, session.key) as http:
        wrong = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {other.key}"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        older = session.key.replace("rp-1-", "rp-0-")
        assert (await http.post("/v1/messages", json=body, headers={"x-api-key": older})).status_code == 401
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        refused = await http.post("/v1/chat/completions", json={**body, "messages": [image]})
        assert refused.status_code == 400
        assert "text only" in refused.json()["error"]["message"]
        hosted = {**body, "tools": [{"type": "web_search_20250305", "name": "web_search"}], "max_tokens": 1}
        refused = await http.post("/v1/messages", json=hosted)
        assert refused.json()["type"] == "error"
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await http.post("/v1/chat/completions", content=b"no json")).status_code == 400
        assert (await http.post("/v1/chat/completions", json=[])).status_code == 400
        packed = await http.post("/v1/chat/completions", content=b"", headers={"content-encoding": "gzip"})
        assert packed.json()["error"]["message"] == "a door reads no compressed requests (content-encoding: gzip)"
        for spelled in ("Bearer ", "bearer ", ""):
            models = await http.get("/v1/models", headers={"authorization": f"{spelled}{session.key}"})
            assert models.json()["data"][0]["id"] == "policy"
        long = {**body, "messages": [{"role": "user", "content": "x" * 20_000}]}
        assert (await http.post("/v1/chat/completions", json=long)).status_code == 413
        for _ in range(2):
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        over = await http.post("/v1/chat/completions", json=body)
        assert (over.status_code, over.json()["error"]["code"]) == (403, "session_ended")
    await session.end()
    await other.end()


async def test_a_door_that_lacks_the_key_of_the_secrets_file_says_so(
    pool: Pool, pool_url: str, door: DoorProcess, led_url: str, tmp_path: Path
) -> None:
    session = await opened(pool, door, led_url)
    other = tmp_path / "secrets.keys"
    other.write_text(Fernet.generate_key().decode() + "\n")
    other.chmod(0o600)
    with running_door(pool_url, ROLLOUTPOOL_SECRETS_FILE=str(other)) as foreign:
        async with client(session.url.replace(door.url, foreign.url), session.key) as http:
            refused = await http.post(
                "/v1/messages", json={"messages": []}, headers={"anthropic-version": "2023-06-01"}
            )
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "this door lacks the key of the API's secrets file"
    await session.end()


async def test_a_session_that_has_sampled_all_it_may_still_gets_its_reward(
    pool: Pool, door: DoorProcess, led_url: str, led: LedPolicy
) -> None:
    session, before = await opened(pool, door, led_url, max_tokens_total=20), len(led.sampled)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await session.program().run("do 9")
    assert refused.value.response.status_code == 403
    assert "max_tokens_total" in refused.value.response.json()["error"]["message"]
    result = await session.end(reward=0.25)
    assert (result.status, result.finish_reason, result.reward) == ("completed", "max_tokens", 0.25)
    assert_all_once(result, led.sampled[before:])
    assert sum(map(len, led.sampled[before:])) >= 20


async def test_a_full_session_that_nobody_ends_is_complete_all_the_same(
    pool: Pool, door: DoorProcess, led_url: str
) -> None:
    session = await opened(pool, door, led_url, max_tokens_total=1, idle_seconds=0.5)
    await session.program().run("do 0")
    async with pool.reconciled():
        result = await pool.result(session.uid)
    assert (result.status, result.finish_reason, result.reward) == ("completed", "max_tokens", None)
    assert len(result.samples) == 1


async def test_a_thousand_calls_at_once_are_bounded_and_harm_nobody(
    pool: Pool, door: DoorProcess, led_url: str, led: LedPolicy
) -> None:
    """One session has at most so many open calls; another one beside it is served meanwhile, and nobody is cut off."""
    hostile = await opened(pool, door, led_url, max_calls_at_once=8, max_calls=10_000)
    other = await opened(pool, door, led_url)
    body = {"model": "m", "messages": [{"role": "user", "content": "do 0"}]}
    headers = {"authorization": f"Bearer {hostile.key}"}
    # httpx takes a minute of its own for so many requests that wait.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:

        async def call() -> tuple[int, str | None]:
            async with http.post(f"{hostile.url}/v1/chat/completions", json=body, headers=headers) as reply:
                return reply.status, reply.headers.get("retry-after")

        calls = [asyncio.ensure_future(call()) for _ in range(1000)]
        started = time.monotonic()
        assert await other.program().run("do 1")
        assert time.monotonic() - started < 20
        replies = await asyncio.gather(*calls)
    assert {status for status, _ in replies} == {200, 429}
    assert all(wait for status, wait in replies if status == 429)
    await hostile.end()
    await other.end()


async def test_large_and_endless_and_half_requests_are_bounded(redis_url: str, tokenizer: ChatTokenizer) -> None:
    with running_door(
        redis_url, ROLLOUTPOOL_DOOR_BODY_MB="1", ROLLOUTPOOL_DOOR_UPLOAD_SECONDS="1", ROLLOUTPOOL_HEAD_SECONDS="1"
    ) as door:
        async with opened_pool(redis_url) as pool:
            session = await opened(pool, door, "http://127.0.0.1:9")
            async with client(session.url, session.key) as http:
                large = await http.post("/v1/chat/completions", content=b" " * 2_000_000)
                assert large.status_code == 413
                deep = b"[" * 100_000 + b"]" * 100_000
                assert (await http.post("/v1/chat/completions", content=deep)).status_code == 400
            host, port = door.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            path = f"{session.url.removeprefix(door.url)}/v1/chat/completions"
            writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n".encode())
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            async with asyncio.timeout(10):
                # It is answered while the client still sends.
                refusal = asyncio.create_task(reader.readuntil(b"}}"))
                while not refusal.done():
                    writer.write(b"1\r\n \r\n")
                    await asyncio.wait([refusal], timeout=0.1)
            writer.close()
            assert refusal.result().startswith(b"HTTP/1.1 400 ")
            assert b"too slowly" in refusal.result()
            halves = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
            for _, writer in halves:
                writer.write(b"POST /s/x/v1/messages HTTP/1.1\r\nhost: x\r\n")
            ended = [await asyncio.wait_for(reader.read(), 10) for reader, _ in halves]
            for _, writer in halves:
                writer.close()
            assert all(b"408" in answer for answer in ended)
