"""One session's WebSocket to an environment's server: a JSON message goes out, one comes back.

1. A task of the session's own reads all the time. Only so the server's pings are answered while the policy samples,
   which may take minutes: uvicorn ends a connection that has not answered for 40 s.
2. The server speaks when it is asked, with one exception: one that has no room says so as soon as it is connected to,
   and closes. So a message that came unasked is the answer to the next question if it is an error, and a fault if not.
3. A message that is too long, not JSON or no text ends the connection, and so does a server that talks on unasked.
4. To close, the server is told, so that it frees the session. It closes the connection when that is done. The pool
   waits for this a little, and then closes it itself.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import httpx
import orjson

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.environments.base import EnvironmentFull
from rolloutpool_worker.policy.transport import HandshakeRefused

FULL = frozenset({429, 503})
"""Answers to the handshake that mean: no room now."""
FREED_SECONDS = 4.0
"""How long a server may take to free a session. With the goodbye of the transport less than a close may take."""
MOST_UNREAD = 4
"""Messages that were not asked for."""


class SessionSocket:
    """A connection for one session, which asks one thing at a time."""

    def __init__(self, connections: ServerConnections, url: str, headers: Mapping[str, str]) -> None:
        """Connects to nothing yet."""
        self._connections = connections
        self._url = url
        self._headers = headers
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._read: asyncio.Queue[str | None] = asyncio.Queue()
        """What the server has said; None after its last message."""

    async def open(self) -> None:
        """Connects."""
        try:
            socket = await self._connections.open_websocket(self._url, self._headers)
        except HandshakeRefused as error:
            kind = EnvironmentFull if error.status in FULL else EnvironmentFault
            raise kind(f"no session: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError) as error:
            raise EnvironmentFault(f"no connection ({type(error).__name__})") from error
        self._socket = socket
        self._reader = asyncio.create_task(self._listen(socket))

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message and returns the answer."""
        assert self._socket is not None, "open comes first"
        unasked = not self._read.empty()
        if not unasked:
            # Where the server has closed, the reader has what it said before.
            with suppress(aiohttp.ClientError, ConnectionError):
                # Not orjson, which takes no long integers. The escapes keep text that is no UTF-8.
                await self._socket.send_str(json.dumps(message))
        text = await self._read.get()
        if text is None:
            self._read.put_nowait(None)
            raise EnvironmentFault(f"the connection has ended (code {self._socket.close_code})")
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise EnvironmentFault("its answer is no JSON object", retryable=False)
        if unasked and answer.get("type") != "error":
            raise EnvironmentFault("it said something unasked", retryable=False)
        return answer

    async def close(self, goodbye: Mapping[str, Any]) -> None:
        """Tells the server and closes the connection; harmless when repeated, or where there is none."""
        if self._socket is None or self._reader is None:
            return
        if not self._reader.done():
            # No connection any more, or none that answers in time.
            with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async with asyncio.timeout(FREED_SECONDS):
                    await self._socket.send_str(json.dumps(goodbye))
                    await asyncio.wait([self._reader])
        try:
            await self._socket.close()
        finally:
            self._reader.cancel()

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            # Pings are answered by `receive`, which does not return for them.
            while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                if self._read.qsize() == MOST_UNREAD:
                    return
                self._read.put_nowait(message.data)
        finally:
            self._read.put_nowait(None)
