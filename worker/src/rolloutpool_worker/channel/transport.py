"""How the worker calls out: httpx' requests and replies over aiohttp's connections.

httpcore costs three times the CPU per call of aiohttp's parser in C, and needs a client for each call in flight; here
one pool serves a process (docs/decisions/0006). No redirect is followed, no cookie kept, no environment read: all of
them would lead past the resolver's checks. An error tells whether the other side can have had the request: only
`httpx.ConnectError` and `httpx.ConnectTimeout` say that it cannot.
"""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import httpx
from aiohttp.connector import Connection
from yarl import URL

from rolloutpool_worker.channel.resolver import Resolver

__all__ = ["Caller", "Transport"]

KEEPALIVE_SECONDS = 1.5
"""Less than servers wait (gunicorn 2 s, uvicorn 5 s): a call on a connection that is just being closed is ambiguous."""
STREAMED_BYTES = 2**20
"""From here on aiohttp wants a body in pieces."""
_PORTS = {"http": 80, "https": 443}


class Transport(httpx.AsyncBaseTransport):
    """Connections to all trainers and webhooks of a process; for one event loop."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        # Building one costs 128 ms.
        self._context = ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises `TargetRefused` before anything is sent, OverflowError or UnicodeError for an impossible host."""
        url, content = request.url, await request.aread()
        if url.scheme not in _PORTS or not url.host:
            raise httpx.UnsupportedProtocol("neither http:// nor https:// with a host", request=request)
        self._resolver.check(url.host, _PORTS[url.scheme] if url.port is None else url.port)
        timeout = request.extensions.get("timeout", {})
        # One look at the sockets: a connection that its server has closed meanwhile must not be taken.
        await asyncio.sleep(0)
        with _as_httpx(request):
            answer = await self._opened().request(
                request.method,
                URL(str(url), encoded=True),
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw],
                data=io.BytesIO(content) if len(content) > STREAMED_BYTES else content or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    connect=timeout.get("connect"), sock_connect=timeout.get("connect"), sock_read=timeout.get("read")
                ),
            )
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(request, answer), request=request)

    async def aclose(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=self._resolver,
                use_dns_cache=False,
                ssl=self._context,
                limit=0,
                keepalive_timeout=KEEPALIVE_SECONDS,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                response_class=_Answer,
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
                trust_env=False,
            )
        return self._session


class Caller:
    """Makes single calls over a transport."""

    def __init__(self, transport: httpx.AsyncBaseTransport, *, timeout: float) -> None:
        """`timeout` in seconds, for each read; a connection has to stand within ten."""
        self.timeout = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._transport = transport
        self._extensions = {"timeout": self.timeout.as_dict()}

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[bytes, bytes] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The reply, its body unread."""
        request = httpx.Request(
            method,
            url,
            content=content,
            headers={b"User-Agent": b"rolloutpool", **(headers or {})},
            extensions=self._extensions,
        )
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Closes the transport."""
        await self._transport.aclose()


class _Answer(aiohttp.ClientResponse):
    """A response whose connection is not used again after an error: many servers then close it without saying so."""

    async def start(self, connection: Connection) -> "_Answer":
        """Part of aiohttp's interface."""
        protocol = connection.protocol
        await super().start(connection)
        if self.status >= httpx.codes.MULTIPLE_CHOICES and protocol is not None:
            protocol.force_close()
            if self.connection is None:
                # All of the body has come already, so it lies in the pool.
                protocol.close()
        return self


class _Body(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, answer: aiohttp.ClientResponse) -> None:
        self._request = request
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for part in self._answer.content.iter_any():
                yield part

    async def aclose(self) -> None:
        # Closes the connection too where something of the body is still to come.
        self._answer.release()


@contextmanager
def _as_httpx(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error), request=request) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error), request=request) from error
    except aiohttp.ServerTimeoutError as error:
        raise httpx.ReadTimeout(str(error), request=request) from error
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
        raise httpx.RemoteProtocolError(f"{type(error).__name__}: {error}", request=request) from error
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise httpx.InvalidURL(str(error)) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise httpx.ReadError(f"{type(error).__name__}: {error}", request=request) from error
    except UnicodeError:
        raise
    except ValueError as error:
        # Of yarl, for a host; of aiohttp, for a header with a line break.
        raise httpx.InvalidURL(str(error)) from error
