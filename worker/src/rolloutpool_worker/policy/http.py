"""How the worker calls out: over aiohttp's connections, with httpx' errors.

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
from functools import lru_cache

import aiohttp
import httpx
from aiohttp.connector import Connection
from yarl import URL

from rolloutpool_worker.policy.resolver import Resolver

__all__ = ["Caller", "Response"]

KEEPALIVE_SECONDS = 1.5
"""Less than servers wait (gunicorn 2 s, uvicorn 5 s): a call on a connection that is just being closed is ambiguous."""
STREAMED_BYTES = 2**20
"""From here on aiohttp wants a body in pieces."""
_URLS = 1024
_AGENT = {"User-Agent": "rolloutpool"}


class Response:
    """A reply whose head has come."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status_code = answer.status
        self.headers: Mapping[str, str] = answer.headers
        """Whatever the case of a name."""
        self._content = answer.content

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises `httpx.HTTPError`."""
        with _as_httpx():
            async for part in self._content.iter_any():
                yield part


class Caller:
    """Makes single calls, over the connections to all trainers and webhooks of a process; for one event loop."""

    def __init__(self, resolver: Resolver, *, timeout: float) -> None:
        """`timeout` in seconds, for each read; a connection has to stand within ten."""
        self.read_timeout = timeout
        self.connect_timeout = min(timeout, 10.0)
        self._resolver = resolver
        self._timeout = aiohttp.ClientTimeout(
            connect=self.connect_timeout, sock_connect=self.connect_timeout, sock_read=timeout
        )
        # Building one costs 128 ms.
        self._context = ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Response]:
        """The reply, its body unread.

        Raises `TargetRefused` before anything is sent, OverflowError or UnicodeError for an impossible host.
        """
        target = _parsed(url)
        self._resolver.check(target.host or "", target.port or 0)
        # One look at the sockets: a connection that its server has closed meanwhile must not be taken.
        await asyncio.sleep(0)
        with _as_httpx():
            answer = await self._opened().request(
                method,
                target,
                headers={**_AGENT, **headers} if headers else _AGENT,
                data=io.BytesIO(content) if len(content) > STREAMED_BYTES else content or None,
                allow_redirects=False,
            )
        try:
            yield Response(answer)
        finally:
            # Closes the connection too where something of the body is still to come.
            answer.release()

    async def close(self) -> None:
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
                timeout=self._timeout,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
                trust_env=False,
            )
        return self._session


@lru_cache(_URLS)
def _parsed(url: str) -> URL:
    """Raises `httpx.InvalidURL` and `httpx.UnsupportedProtocol`."""
    with _as_httpx():
        parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise httpx.UnsupportedProtocol("neither http:// nor https:// with a host")
    return parsed


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


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error)) from error
    except aiohttp.ServerTimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
        raise httpx.RemoteProtocolError(f"{type(error).__name__}: {error}") from error
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise httpx.InvalidURL(str(error)) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise httpx.ReadError(f"{type(error).__name__}: {error}") from error
    except UnicodeError:
        raise
    except ValueError as error:
        # Of yarl, for a host; of aiohttp, for a header with a line break.
        raise httpx.InvalidURL(str(error)) from error
