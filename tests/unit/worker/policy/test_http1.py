"""The client's connections: whatever servers and callers do, each call gets its own reply or an error, once."""

import asyncio
import random

import httpx
import pytest
from tests.support.raw_server import answering

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy import http1
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver


@pytest.mark.parametrize("seed", range(4))
async def test_many_calls_beside_each_other(seed: int) -> None:
    """Servers are late, break off, close and speak unasked; callers give up. No connection is kept that has a call."""
    chance = random.Random(seed)
    served = 0
    answered: set[bytes] = set()
    """The calls that have their whole reply. None of them may break."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            served += 1
            await asyncio.sleep(chance.choice([0, 0, 0, 0.001, 0.01]))
            reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            kind = chance.randrange(20)
            if kind > 1:
                answered.add(body)
            match kind:
                case 0:
                    writer.write(reply[: len(reply) // 2])
                    return
                case 1:
                    return
                case 2:
                    writer.write(reply)
                    return
                case 3:
                    writer.write(reply + reply)
                case 4:
                    writer.write(reply.replace(b"200 OK", b"503 No"))
                case _:
                    for start in range(0, len(reply), 4000):
                        writer.write(reply[start : start + 4000])

    counts = {"own": 0, "broken": 0, "given up": 0}

    async def caller(number: int) -> None:
        for turn in range(40):
            body = b"%d/%d " % (number, turn) * chance.choice([1, 1, 1000])
            call = asyncio.ensure_future(client.ask("POST", server.url, {}, body, most_bytes=10**6))
            if chance.random() < 0.1:
                await asyncio.sleep(chance.choice([0, 0.001]))
                call.cancel()
            try:
                answer = await call
            except asyncio.CancelledError:
                counts["given up"] += 1
            except httpx.HTTPError:
                assert body not in answered
                counts["broken"] += 1
            else:
                # A reply that came unasked is never another call's.
                assert answer.data == (body if answer.is_whole else b"")
                counts["own"] += 1
            kept = [connection for all_kept in client._kept.values() for connection in all_kept]
            assert len(kept) == len(set(kept))
            assert all(connection._reply is None for connection in kept)

    async with answering(handle) as server:
        client = Http1Client(Resolver(Targets.loopback()), timeout=20)
        await asyncio.gather(*(caller(number) for number in range(25)))
        assert sum(counts.values()) == 1000
        assert counts["own"] > 700
        assert served >= counts["own"]
        # Limits are taken back with their calls.
        assert not client._deadlines.waiting
        await client.aclose()
    await asyncio.sleep(0)
    assert client._open == set()


async def test_what_was_kept_is_closed_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEPALIVE_SECONDS", 0.05)
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert await reader.read() == b"{}"
        ended.set()

    async with answering(handle) as server:
        client = Http1Client(Resolver(Targets.loopback()), timeout=5)
        await client.ask("POST", server.url, {}, b"{}", most_bytes=10)
        await asyncio.wait_for(ended.wait(), 5)
        assert client._open == set()
        assert client._kept == {}
        await client.aclose()


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://127.0.0.1:{port}", "POST / HTTP/1.1", "127.0.0.1:{port}"),
        ("http://127.0.0.1:{port}/a b?x=ü", "POST /a%20b?x=%C3%BC HTTP/1.1", "127.0.0.1:{port}"),
        ("http://127.0.0.1:{port}/v1#part", "POST /v1 HTTP/1.1", "127.0.0.1:{port}"),
    ],
)
async def test_what_a_url_becomes(url: str, line: str, host: str) -> None:
    heads: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with answering(handle) as server:
        client = Http1Client(Resolver(Targets.loopback()), timeout=5)
        user = url.replace("http://", "http://me:s%20ecret@")
        await client.ask("POST", url.format(port=server.port), {"X-Name": "ключ"}, b"", most_bytes=10)
        await client.ask("POST", user.format(port=server.port), {}, b"", most_bytes=10)
        await client.aclose()
    first, second = (head.split("\r\n") for head in heads)
    assert first[0] == second[0] == line
    assert f"Host: {host.format(port=server.port)}" in first
    assert "X-Name: ключ" in first
    assert "Content-Length: 0" in first
    assert "Authorization: Basic bWU6cyBlY3JldA==" in second
