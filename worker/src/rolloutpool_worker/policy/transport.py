"""AiohttpTransport: httpx' API for requests, replies and errors, over aiohttp's connections.

httpcore, which httpx brings along, costs several times the CPU of aiohttp's parser in C (docs/decisions/0007). What
callers see is httpx alone: `httpx.Request`, `httpx.Response`, `httpx.HTTPError`. A call takes these steps:

1. The URL is parsed once and remembered. Its host and port are checked (`Resolver.check`) before anything is sent.
2. The event loop gets one turn. It notices which pooled connections their servers have closed meanwhile, so that none
   of them is taken for this call.
3. aiohttp takes a pooled connection to this host, or opens one. A new connection goes to an address that
   `Resolver.resolve` has checked.
4. A connection by which something has come already is closed, and the request goes by a new one (`aiohttp_compat`):
   what has come would pass for the reply.
5. The reply's head becomes an `httpx.Response`; its body is read as the caller iterates over it.
   The kernel probes the other side while the reply is waited for (`keepalive`).
6. Closing the response gives the connection back to the pool. If part of the body is unread, it closes the connection.
   A caller who finds that the reply belongs to another request calls `response.extensions["discard"]()`, which closes
   the connection in any case.

No redirect is followed, no cookie kept and no proxy of the environment used: all of them would lead past the checks.

An error tells whether the other side can have had the request. `httpx.ConnectError`, with `NameUnresolved` among them,
and `httpx.ConnectTimeout` say that it cannot; every other error leaves it open, and a turn may then be asked again only
where the trainer promised that this is safe.

A WebSocket is opened with the same checks. There its reader sees aiohttp's own messages and errors.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import aiohttp
import httpx
from yarl import URL

from rolloutpool_worker.policy.aiohttp_compat import CleanConnector, CleanRequest, ClosingResponse, UnaskedBytes
from rolloutpool_worker.policy.certificates import verifying
from rolloutpool_worker.policy.keepalive import open_socket
from rolloutpool_worker.policy.resolver import Resolver

KEEPALIVE_SECONDS = 1.5
"""Less than servers wait (gunicorn 2 s, uvicorn 5 s): a call on a connection that is just being closed is ambiguous."""
STREAMED_BYTES = 2**20
"""aiohttp warns about larger bodies unless they come as a file."""
CONNECT_SECONDS = 10.0
CONNECTIONS = 3
"""That are tried for one request: a kept one, and new ones where something came by it before the request was sent."""
GOODBYE_SECONDS = 2.0
"""How long a WebSocket's other side has to answer that it is closed."""
_URLS = 1024


class NameUnresolved(httpx.ConnectError):
    """The name servers know no address of a host, or did not answer."""


_ERRORS: MappingProxyType[type[Exception], type[httpx.TransportError]] = MappingProxyType(
    {
        # The other side cannot have had the request.
        UnaskedBytes: httpx.ConnectError,
        aiohttp.ConnectionTimeoutError: httpx.ConnectTimeout,
        aiohttp.ClientConnectorError: httpx.ConnectError,
        # It may have had it.
        aiohttp.ServerTimeoutError: httpx.ReadTimeout,
        aiohttp.ClientResponseError: httpx.RemoteProtocolError,
        aiohttp.ClientPayloadError: httpx.RemoteProtocolError,
        aiohttp.ServerDisconnectedError: httpx.RemoteProtocolError,
        aiohttp.ClientError: httpx.ReadError,
        ConnectionError: httpx.ReadError,
    }
)
"""aiohttp's errors in httpx' words. The first that fits counts, so a subclass stands before its base."""


class HandshakeRefused(httpx.RemoteProtocolError):
    """A server answered something else than that the WebSocket is open."""

    def __init__(self, status: int) -> None:
        """`status` is what it answered."""
        super().__init__(f"the server answered {status} to the handshake")
        self.status = status


class AiohttpTransport(httpx.AsyncBaseTransport):
    """The connections of a process to all trainers and webhooks; for one event loop."""

    def __init__(self, resolver: Resolver, *, timeout: float) -> None:
        """Opens nothing yet."""
        # The timeout allows for sampling, which may take minutes. A connection needs no such time.
        connect = min(timeout, CONNECT_SECONDS)
        self.timeout = httpx.Timeout(timeout, connect=connect)
        """For requests that bring no timeout of their own."""
        self._default = self.timeout.as_dict()
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._unkept: aiohttp.ClientSession | None = None
        self._websockets: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and reads the head of its reply. The caller closes the response."""
        target = _parsed(str(request.url))
        self._resolver.check(target.host or "", target.port or 0)
        # Step 2 above: a call on a connection that its server has closed would be ambiguous.
        await asyncio.sleep(0)
        content = await request.aread()
        for left in reversed(range(CONNECTIONS)):
            try:
                answer = await self._send(request, target, content, kept=left == CONNECTIONS - 1)
                break
            except UnaskedBytes as error:
                if not left:
                    raise _translated(error) from error
            except (aiohttp.ClientError, ConnectionError, ValueError) as error:
                raise _translated(error) from error
        return httpx.Response(
            answer.status,
            headers=_headers(answer),
            stream=_Body(answer),
            extensions={"discard": answer.discard},
            request=request,
        )

    async def _send(self, request: httpx.Request, target: URL, content: bytes, *, kept: bool) -> ClosingResponse:
        """Sends a request by a connection that is kept, or by a new one that serves this request alone."""
        timeout = request.extensions.get("timeout") or self._default
        answer = await self._opened(kept=kept).request(
            request.method,
            target,
            headers=[(name.decode("ascii"), value.decode()) for name, value in request.headers.raw],
            data=io.BytesIO(content) if len(content) > STREAMED_BYTES else content or None,
            allow_redirects=False,
            timeout=_limits(timeout["connect"], timeout["read"]),
        )
        assert isinstance(answer, ClosingResponse)
        return answer

    async def open_websocket(
        self, url: str, headers: Mapping[str, str], *, most_bytes: int
    ) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket. The caller closes it, and reads all the time: only so the server's pings are answered."""
        target = _parsed(url)
        self._resolver.check(target.host or "", target.port or 0)
        if self._websockets is None:
            connect = self._default["connect"]
            self._websockets = self._new_session(_refuse_redirect, timeout=_limits(connect, connect))
        try:
            return await self._websockets.ws_connect(
                target,
                headers=headers,
                timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_SECONDS),
                max_msg_size=most_bytes,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise HandshakeRefused(error.status) from error
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Closes all connections."""
        for session in (self._session, self._unkept, self._websockets):
            if session is not None:
                await session.close()
        await self._resolver.close()

    def _opened(self, *, kept: bool) -> aiohttp.ClientSession:
        if kept:
            if self._session is None:
                self._session = self._new_session()
            return self._session
        if self._unkept is None:
            self._unkept = self._new_session(kept=False)
        return self._unkept

    def _new_session(
        self,
        *middlewares: aiohttp.ClientMiddlewareType,
        timeout: aiohttp.ClientTimeout | None = None,
        kept: bool = True,
    ) -> aiohttp.ClientSession:
        connector = CleanConnector(
            resolver=self._resolver,
            # aiohttp's own cache would give it addresses that `Resolver.resolve` has not checked for this call.
            use_dns_cache=False,
            ssl=verifying(),
            # No limit: slots limit the calls already. With aiohttp's 100, most of 256 slots could wait for a
            # connection.
            limit=0,
            keepalive_timeout=KEEPALIVE_SECONDS if kept else None,
            force_close=not kept,
            socket_factory=open_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "rolloutpool"},
            request_class=CleanRequest,
            response_class=ClosingResponse,
            skip_auto_headers=("Accept-Encoding", "Content-Type"),
            timeout=timeout or aiohttp.ClientTimeout(),
            middlewares=middlewares,
            trust_env=False,
        )


class _Body(httpx.AsyncByteStream):
    """A reply's body, as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields what has come; raises `httpx.TransportError`."""
        try:
            async for part in self._answer.content.iter_any():
                yield part
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Gives the connection back, or closes it where something of the body is still to come."""
        # Not `close`, which would cost the next call a new connection.
        self._answer.release()


async def _refuse_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Ends a handshake that is redirected: aiohttp would follow, to an address that nothing has checked."""
    response = await handler(request)
    if 300 <= response.status < 400:
        response.close()
        raise aiohttp.WSServerHandshakeError(response.request_info, response.history, status=response.status)
    return response


@lru_cache
def _limits(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=connect, sock_connect=connect, sock_read=read)


@lru_cache(_URLS)
def _parsed(url: str) -> URL:
    """Parses a URL with the parser that aiohttp connects by, so that what is checked is what is called."""
    try:
        parsed = URL(url)
    except ValueError as error:
        raise httpx.InvalidURL(str(error)) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise httpx.UnsupportedProtocol("neither http:// nor https:// with a host")
    return parsed


def _headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The reply's headers for httpx, which must not decompress what aiohttp has decompressed already."""
    encoded = "Content-Encoding" in answer.headers
    return [(k, v) for k, v in answer.raw_headers if not (encoded and k.lower() == b"content-encoding")]


def _translated(error: Exception) -> Exception:
    if isinstance(error, UnicodeError):
        return error
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return httpx.InvalidURL(str(error))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        # aiohttp's own text says "Cannot connect to host", which nobody tried.
        return NameUnresolved(f"the name {error.host} did not resolve ({error.os_error.strerror or error.os_error})")
    for theirs, ours in _ERRORS.items():
        if isinstance(error, theirs):
            return ours(f"{type(error).__name__}: {error}")
    # A ValueError of yarl for a host, or of aiohttp for a header with a line break.
    return httpx.InvalidURL(str(error))
