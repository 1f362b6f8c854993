"""Connections to the servers of environments: which addresses may be called, and what bounds each call.

`http`, `mcp` and `openenv` speak three languages over the same connections, so these rules hold for all of them:

1. An address is called only if the worker's `Targets` allow it, and it is checked when it is connected to
   (`policy/resolver.py`). The URL may be the operator's, or one that a rollout of protocol v1 names.
2. A connection has to stand within ten seconds, and each read ends after `READ_SECONDS`. That is the last resort: what
   asks has the shorter limit of its session.
3. No redirect is followed. It is an error as soon as the head of the reply is there; its body is not read.
4. A reply has `MOST_REPLY_BYTES` at the most, and so has a message of a WebSocket.
5. Each request says for which rollout and attempt it is (`X-Rollout-Id`, `X-Rollout-Attempt`), so that a server can
   refuse an attempt that is over.

An environment has connections of its own, and closes them when its worker stops.
"""

from collections.abc import AsyncIterator, Mapping

import aiohttp
import httpx

from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport

READ_SECONDS = 600.0
"""A stream of notifications may be silent for so long."""
MOST_REPLY_BYTES = 8 * 2**20
"""Of one reply. What the policy is shown of it is much less."""


class RedirectRefused(httpx.RemoteProtocolError):
    """A server has answered with a redirect."""

    def __init__(self, status: int) -> None:
        """`status` is what it answered."""
        super().__init__(f"it answered {status}, and no redirect is followed")


class ReplyTooLarge(httpx.ReadError):
    """A server's reply is larger than any that is read."""

    def __init__(self) -> None:
        """Says what the limit is."""
        super().__init__(f"the reply is larger than {MOST_REPLY_BYTES:,} bytes")


class ServerConnections:
    """The connections of one environment; for one event loop."""

    def __init__(self, targets: Targets) -> None:
        """Connects to nothing yet."""
        self._targets = targets
        self._transport: AiohttpTransport | None = None

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and reads the head of its reply. The caller closes the response."""
        response = await self._opened().handle_async_request(request)
        if 300 <= response.status_code < 400:
            await response.aclose()
            raise RedirectRefused(response.status_code)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedBody(response.stream)
        return response

    async def open_websocket(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket; arguments, duties and errors are those of the transport's `open_websocket`."""
        return await self._opened().open_websocket(url, headers, most_bytes=MOST_REPLY_BYTES)

    async def aclose(self) -> None:
        """Closes them all."""
        if self._transport is not None:
            await self._transport.aclose()

    def _opened(self) -> AiohttpTransport:
        # Not before the first session: it costs 128 ms, and a worker may never need it.
        if self._transport is None:
            self._transport = AiohttpTransport(Resolver(self._targets), timeout=READ_SECONDS)
        return self._transport


class _BoundedBody(httpx.AsyncByteStream):
    """A reply's body, as far as it may be read."""

    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields what has come; raises `ReplyTooLarge`."""
        size = 0
        async for part in self._body:
            size += len(part)
            # While it is read, because a reply need not say its length, or say the truth.
            if size > MOST_REPLY_BYTES:
                raise ReplyTooLarge
            yield part

    async def aclose(self) -> None:
        """Gives the connection back, or closes it where something of the body is still to come."""
        await self._body.aclose()


def attempt_headers(headers: Mapping[str, str], rollout_uid: str, attempt: int) -> dict[str, str]:
    """Adds to the operator's headers for which rollout and attempt a request is."""
    return {**headers, "X-Rollout-Id": rollout_uid, "X-Rollout-Attempt": str(attempt)}
