"""Connections go to the address that was checked, whatever name servers, redirects and environments say."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Protocol

import httpx
import pytest
from tests.support.certificates import certificate
from tests.support.raw_server import RawServer, answering
from tests.support.turn_clients import KINDS, asking

from rolloutpool_common.errors import TargetRefused
from rolloutpool_common.outcomes import Boundary, Category, FailureKind
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy import resolver
from rolloutpool_worker.policy.resolver import Resolver, resolve
from rolloutpool_worker.policy.transport import STREAMED_BYTES, AiohttpTransport
from rolloutpool_worker.policy.turn_client import TurnClient

HERE, THERE = "127.0.0.1", "127.0.0.2"
"""Two hosts on one machine: the tests allow one of them."""


@contextlib.asynccontextmanager
async def server(
    host: str, port: int = 0, *, answer: str = "200 OK", tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """Answers each connection once and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()

    async with answering(handle, host, port, tls=tls) as made:
        yield made


class Names:
    """A resolver by script: each question gets the next answer, and the last one again and again."""

    def __init__(self, *answers: Iterable[str]) -> None:
        self.asked: list[str] = []
        self._answers = [list(answer) for answer in answers]

    async def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not answer:
            raise OSError(None, "no such name")
        return answer


class Calling(Protocol):
    """Makes one of the ways to ask for a turn."""

    def __call__(
        self, listed: str, names: Callable[[str], Coroutine[None, None, list[str]]] = resolve, *, timeout: float = 5
    ) -> contextlib.AbstractAsyncContextManager[TurnClient]:
        """It may call what is listed, and asks these names."""
        ...


@pytest.fixture(params=KINDS)
def calling(request: pytest.FixtureRequest) -> Calling:
    def made(
        listed: str, names: Callable[[str], Coroutine[None, None, list[str]]] = resolve, *, timeout: float = 5
    ) -> contextlib.AbstractAsyncContextManager[TurnClient]:
        return asking(request.param, Resolver(Targets.parse(listed), names), timeout=timeout)

    return made


@contextlib.asynccontextmanager
async def straight() -> AsyncIterator[AiohttpTransport]:
    transport = AiohttpTransport(Resolver(Targets.loopback()), timeout=5)
    yield transport
    await transport.aclose()


async def call(client: TurnClient, url: str) -> int:
    return (await client.ask("POST", url, {}, b"", most_bytes=1000)).status


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a name server said is forgotten at once."""
    monkeypatch.setattr(resolver, "FRESH_SECONDS", -1.0)


@pytest.mark.usefixtures("stale")
@pytest.mark.parametrize("later", [[HERE], ["169.254.169.254"], ["::ffff:127.0.0.1"], [THERE, HERE], ["fe80::1%lo"]])
async def test_a_name_that_is_rebound_leads_nowhere(calling: Calling, later: list[str]) -> None:
    async with server(HERE) as inner, server(THERE, inner.port) as good:
        names = Names([THERE], later)
        async with calling(f"*,{THERE}", names) as client:
            url = f"http://rebinding.example:{good.port}"
            assert await call(client, url) == 200
            with pytest.raises(TargetRefused, match="resolves to an address that may not be called"):
                await call(client, url)
        assert len(good.heads) == 1
        assert inner.heads == []
        assert len(names.asked) == 2


@pytest.mark.usefixtures("stale")
async def test_the_address_that_was_checked_is_the_one_that_is_called(calling: Calling) -> None:
    """A name server that answers every other question with the inner address is asked once per connection."""
    async with server(HERE) as inner, server(THERE, inner.port) as good:
        names = Names([THERE], [HERE])
        async with calling(f"*,{THERE}", names) as client:
            assert await call(client, f"http://flipping.example:{good.port}") == 200
        assert names.asked == ["flipping.example"]
        assert (len(good.heads), len(inner.heads)) == (1, 0)
        # The server is told the name, as it must be.
        assert f"host: flipping.example:{good.port}\r\n" in good.heads[0].lower()


@pytest.mark.parametrize(
    ("listed", "host"),
    [
        ("*", HERE),
        ("trainer.example", "other.example"),
        ("10.0.0.0/8", HERE),
        ("127.0.0.1:1", HERE),
        ("*,0.0.0.0/0,::/0", "169.254.169.254"),
        ("*,0.0.0.0/0,::/0", "[::ffff:169.254.169.254]"),
        ("*,0.0.0.0/0,::/0", "0.0.0.0"),
        ("*,0.0.0.0/0,::/0", "[::]"),
        ("*", "[::1]"),
        ("*", "[::ffff:127.0.0.1]"),
    ],
)
async def test_what_is_not_listed_is_not_called(calling: Calling, listed: str, host: str) -> None:
    names = Names([HERE])
    async with server(HERE) as inner, calling(listed, names) as client:
        with pytest.raises(TargetRefused) as raised:
            await call(client, f"http://{host}:{inner.port}")
        assert inner.heads == []
    assert names.asked == []
    failure = raised.value.failure(1)
    assert (failure.kind, failure.boundary, failure.category) == (
        FailureKind.REQUEST,
        Boundary.TRAINER,
        Category.TARGET_REFUSED,
    )
    assert not failure.retryable


@pytest.mark.parametrize("spelling", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
async def test_other_spellings_of_an_address_are_checked_as_what_they_mean(calling: Calling, spelling: str) -> None:
    async with server(HERE) as inner:
        async with calling("*") as client:
            with pytest.raises((TargetRefused, httpx.HTTPError, httpx.InvalidURL)):
                await call(client, f"http://{spelling}:{inner.port}")
        assert inner.heads == []


async def test_ipv6_is_called_where_it_is_listed(calling: Calling) -> None:
    async with server("::1") as listening, calling("::1", Names([])) as client:
        assert await call(client, f"http://[::1]:{listening.port}") == 200


async def test_the_systems_own_resolver_is_used(calling: Calling) -> None:
    async with server(HERE) as listening, calling("127.0.0.0/8,::1,localhost") as client:
        assert await call(client, f"http://localhost:{listening.port}") == 200


async def test_a_connection_that_its_server_closed_without_a_word_is_not_used_again(calling: Calling) -> None:
    """A call that failed on it would be one that the trainer may have had."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with answering(handle) as made, calling(HERE, Names([])) as client:
        assert [await call(client, made.url) for _ in range(50)] == [200] * 50


@pytest.mark.parametrize("body", ["", "no"])
async def test_no_connection_is_used_again_after_an_error(calling: Calling, body: str) -> None:
    """The server closes it a moment later, when the call that is made again is on its way already."""
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 429 No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await asyncio.Event().wait()

    async with answering(handle) as made, calling(HERE, Names([])) as client:
        assert [await call(client, made.url) for _ in range(3)] == [429] * 3
        assert connections == 3


async def test_a_reply_that_breaks_off_is_an_error_of_httpx_with_its_request() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()

    async with answering(handle) as made, straight() as transport:
        request = httpx.Request("GET", made.url)
        response = await transport.handle_async_request(request)
        with pytest.raises(httpx.RemoteProtocolError) as raised:
            await response.aread()
        assert raised.value.request is request
        await response.aclose()


async def test_a_client_of_httpx_may_use_it_with_a_timeout_of_its_own() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with answering(handle) as made, straight() as transport:
        client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=0.1)
        with pytest.raises(httpx.ReadTimeout):
            await client.get(made.url)


async def test_redirects_are_not_followed(calling: Calling) -> None:
    async with server(HERE) as inner:
        moved = f"307 Temporary Redirect\r\nLocation: http://{HERE}:{inner.port}/"
        async with server(HERE, answer=moved) as outer, calling(HERE, Names([])) as client:
            assert await call(client, f"http://{HERE}:{outer.port}") == 307
        assert inner.heads == []


async def test_proxies_of_the_environment_are_ignored(calling: Calling, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(HERE) as proxy, server(HERE) as listening:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://{HERE}:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with calling(HERE, Names([])) as client:
            assert await call(client, f"http://{HERE}:{listening.port}/x") == 200
        assert proxy.heads == []
        assert listening.heads[0].startswith("POST /x ")


async def test_many_at_once_ask_once_and_one_that_gives_up_spoils_nothing(calling: Calling) -> None:
    async with server(HERE) as listening:
        begun, release = asyncio.Event(), asyncio.Event()
        asked: list[str] = []

        async def slow(name: str) -> list[str]:
            asked.append(name)
            begun.set()
            await release.wait()
            return [HERE]

        async with calling(f"*,{HERE}", slow, timeout=30) as client:
            calls = [asyncio.create_task(call(client, f"http://slow.example:{listening.port}")) for _ in range(20)]
            await begun.wait()
            calls[0].cancel()
            release.set()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert answers[1:] == [200] * 19
        assert asked == ["slow.example"]


async def test_the_next_address_is_tried_where_one_is_dead(calling: Calling) -> None:
    async with server(HERE) as listening, calling(f"*,{HERE},{THERE}", Names([THERE, HERE])) as client:
        assert await call(client, f"http://two.example:{listening.port}") == 200


async def test_a_name_server_that_is_silent_is_a_connect_time_out(calling: Calling) -> None:
    async def silent(name: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with calling("*", silent, timeout=0.05) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await call(client, "http://silent.example")


async def test_tls_verifies_the_name_and_not_the_address(
    calling: Calling, tmp_path: Path, trust: Callable[[Path], None]
) -> None:
    file, context = certificate("trainer.example", THERE, tmp_path)
    asked: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked.append(name)
    trust(file)
    async with server(HERE, tls=context) as listening, calling(f"*,{HERE}", Names([HERE])) as client:
        assert await call(client, f"https://trainer.example:{listening.port}") == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await call(client, f"https://other.example:{listening.port}")
    assert asked == ["trainer.example", "other.example"]


@pytest.mark.parametrize("length", [0, 1, STREAMED_BYTES, STREAMED_BYTES + 1])
async def test_a_request_says_its_length_and_its_host(calling: Calling, length: int) -> None:
    """Simple servers read no chunks, and httpx adds neither header to a request with a stream."""
    async with server(HERE) as listening, calling(HERE) as client:
        await client.ask("POST", listening.url, {}, b"x" * length, most_bytes=0)
    head = listening.heads[0].lower()
    assert f"content-length: {length}\r\n" in head
    assert f"host: {HERE}:{listening.port}\r\n" in head
    assert "transfer-encoding" not in head
