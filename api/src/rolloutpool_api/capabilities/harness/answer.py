"""A door's answers: an object, an error in the dialect's words, or a stream that begins with its first part."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
from starlette.types import Send

from rolloutpool_api.capabilities.harness.dialects.base import STATUS, AgentReply, AgentRequest, Dialect, ErrorKind
from rolloutpool_common.errors import RolloutPoolError

RETRY_SECONDS = 1


class DoorRefusal(RolloutPoolError):
    """The door refuses a request."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


class CallAnswer:
    """The answer to one call: one object, or a stream that begins when there is something to send."""

    def __init__(self, dialect: Dialect, request: AgentRequest, send: Send) -> None:
        self._dialect = dialect
        self._request = request
        self._send = send
        self._begun = False

    async def ping(self) -> None:
        """Shows the program that somebody is there; one that asked for no stream has to wait."""
        if self._request.stream:
            await self._begin()
            await self._part(self._dialect.ping)

    async def give(self, reply: AgentReply, gone: "asyncio.Future[None]") -> bool:
        """Sends the reply; tells whether the program was there until the last byte."""
        if not self._request.stream:
            return await self.give_whole(self._dialect.whole(reply, self._request), gone)
        await self._begin()
        await self._part(b"".join(self._dialect.events(reply, self._request)))
        return await self._end(gone)

    async def give_whole(self, found: dict[str, Any], gone: "asyncio.Future[None]") -> bool:
        """Sends an object; tells whether the program was there until the last byte."""
        data = orjson.dumps(found)
        await _start(self._send, 200, {"content-length": str(len(data))})
        await self._part(data)
        return await self._end(gone)

    async def _end(self, gone: "asyncio.Future[None]") -> bool:
        # A connection that was closed meanwhile is known once the loop has had a turn. After its end every answer
        # counts as left, so it is looked at before.
        await asyncio.sleep(0)
        stayed = not gone.done()
        await self._send({"type": "http.response.body", "body": b""})
        return stayed

    async def fail(self, kind: ErrorKind, message: str) -> None:
        """Sends an error, as the end of the stream if that has begun."""
        if not self._begun:
            await refuse(self._send, self._dialect, DoorRefusal(kind, message))
            return
        await self._part(self._dialect.error_event(kind, message))
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", self._dialect.media_type.encode()), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


async def send_object(
    send: Send, status: int, body_of: Any, *, headers: Mapping[str, str] | None = None, body: bool = True
) -> None:
    data = orjson.dumps(body_of)
    await _start(send, status, {"content-length": str(len(data)), **(headers or {})})
    await send({"type": "http.response.body", "body": data if body else b""})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    sent = {"content-type": "application/json", **headers}
    listed = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})


async def refuse(send: Send, dialect: Dialect, refusal: DoorRefusal) -> None:
    headers = {"retry-after": str(RETRY_SECONDS)} if refusal.kind in ("busy", "failed") else {}
    with suppress(OSError):
        await send_object(send, STATUS[refusal.kind], dialect.error(refusal.kind, refusal.message), headers=headers)
