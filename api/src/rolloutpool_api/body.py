"""Request bodies: bounded in size, and strict JSON.

A document that passes `parse` can be stored, sent on and read by any other JSON reader: it has no NaN, no number that
overflows to infinity, no lone surrogate and no more than 201 levels. Python's own reader accepts all of these.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import orjson
import structlog
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_api.errors import MalformedBody, UnsupportedBody

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)

OFF_LOOP_BYTES = 64 * 1024
"""Larger bodies are parsed in a thread: 64 kB is parsed and validated in about a millisecond."""
FROM_BYTES = 1_000_000
"""Larger bodies are read in another process (`large_bodies`)."""
GRACE_SECONDS = 20.0
"""So long a body may take whatever its size: networks pause."""
TAKES_LARGE = frozenset({("POST", "/rollout"), ("POST", "/v1/batches")})
"""Requests whose body may be larger than that."""


def parse(body: bytes) -> Any:
    """Parses a document; raises ValueError, whose text says what is wrong at which line and column."""
    # pydantic's reader keeps large integers exact, but lets 1e999 through as infinity; orjson's refuses it. orjson's
    # comes first, so that its document is gone before the other is made. It takes 9 times the size of a body of small
    # messages, so large bodies without such a number are spared it.
    if len(body) <= FROM_BYTES or _may_overflow(body):
        try:
            orjson.loads(body)
        except ValueError:
            # Where both refuse the body, the text is pydantic's.
            from_json(body, allow_inf_nan=False)
            raise
    return from_json(body, allow_inf_nan=False)


def _may_overflow(body: bytes) -> bool:
    """Whether a number may be too large for a float; takes twice the size of the body in memory."""
    found = False

    def look(text: str) -> None:
        nonlocal found
        # An integer of so many digits is left to orjson too.
        found = found or len(text) > 300 or math.isinf(float(text))

    try:
        json.loads(body, object_pairs_hook=lambda _: None, parse_float=look, parse_int=look)
    except (ValueError, RecursionError):
        return True
    return found


def refuse_repeated_keys(body: bytes) -> None:
    """Raises ValueError, which names the key, where an object of a document that passed `parse` has a key twice.

    `parse` keeps the last of the two values, and another reader may keep the first.
    """
    # Numbers stay text: nobody looks at them here, and Python refuses to read integers of thousands of digits.
    json.loads(body, object_pairs_hook=_refuse_repeated_key, parse_int=str, parse_float=str)


def _refuse_repeated_key(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key[:100]!r} occurs twice in one object; send it once")
        seen.add(key)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Does work on a body, in a thread where the body is large, so that the event loop stays free."""
    return await asyncio.to_thread(work) if size > OFF_LOOP_BYTES else work()


async def read_json_body(request: Request) -> bytes:
    """Reads the raw body of a request."""
    check_kind(request.headers)
    body = await request.body()
    if not body:
        raise MalformedBody("the body is empty; send a JSON object")
    return body


def check_kind(headers: Headers) -> None:
    """Raises `UnsupportedBody` if the headers say that the body is not JSON, or that it is compressed."""
    kind = headers.get("content-type", "application/json").split(";", 1)[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    # Nothing here decompresses: a compressed body would fail as JSON, with an error that names another cause.
    if not is_json or "content-encoding" in headers:
        raise UnsupportedBody


def replay(body: bytes, receive: Receive) -> Receive:
    """Makes a `receive` that gives a body which was read before, and then what follows it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


class StrictRequest(Request):
    """A request whose JSON is strict, and parsed in a thread where it is large."""

    async def json(self) -> Any:
        """Parses the body; FastAPI calls this once per request, for the route's body parameters."""
        body = await self.body()
        return await off_loop(len(body), lambda: _parse_like_python(body))


class StrictRoute(APIRoute):
    """A route whose body parameters come from a `StrictRequest`; FastAPI documents this way to replace the request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns a handler that hands each request over as a `StrictRequest`."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def _parse_like_python(body: bytes) -> Any:
    try:
        return parse(body)
    except ValueError as error:
        # Where Python's reader refuses the body too, its own error goes out.
        json.loads(body)
        raise json.JSONDecodeError(str(error), "", 0) from None


class BodyLimit:
    """Bounds bodies in size and time, and logs callers that leave.

    1. A body above a size is refused with 413, before it is read where it announces its size.
    2. One that comes too slowly is refused with 408: after `GRACE_SECONDS` it must have come at `min_rate` on average.
       Only the time counts in which the application waits for the caller. It is no fault of the caller if the
       application does not read.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, min_rate: float) -> None:
        """`min_rate` is in bytes per second."""
        self._app = app
        self._max_bytes = max_bytes
        self._min_rate = min_rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with a bounded `receive` (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BoundedBody(scope, receive, self._max_bytes, self._min_rate)

        async def watched(message: Message) -> None:
            body.has_answered = True
            await send(message)

        await self._app(scope, body.receive, watched)


class _BoundedBody:
    """The body of one request, as it comes."""

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int, min_rate: float) -> None:
        self._path: str = scope["path"]
        self._receive = receive
        self._takes_large = (scope["method"], self._path) in TAKES_LARGE
        self._limit = limit = max_bytes if self._takes_large else min(max_bytes, FROM_BYTES)
        self._min_rate = min_rate
        announced = Headers(scope=scope).get("content-length", "0")
        # An announced size above the limit counts as read, so the first `receive` refuses without reading.
        self._seen = int(announced) if announced.isdecimal() and int(announced) > limit else 0
        self._waited = 0.0
        self._is_whole = self._has_left = self.has_answered = False

    async def receive(self) -> Message:
        """Receives the next message of the request (ASGI); raises `HTTPException` where a bound is passed."""
        if self._seen > self._limit:
            message: Message = {}
        else:
            # What follows a whole body is the end of the connection, which may be far.
            message = await (self._receive() if self._is_whole else self._in_time())
        self._seen += len(message.get("body", b""))
        if message.get("type") == "http.request":
            self._is_whole = not message.get("more_body", False)
        elif message.get("type") == "http.disconnect" and not (self._is_whole or self.has_answered or self._has_left):
            # `/rollout` reads once more what could not be read, because one wire looks before the other.
            self._has_left = True
            _log.info("caller left in mid-body", path=self._path, received=self._seen)
        # Raised while the app reads, so that the app's own handlers write the answer in the shape of the path.
        if self._seen > self._limit:
            mend = "send smaller batches, or raise ROLLOUTPOOL_MAX_BODY_MB" if self._takes_large else "send less"
            raise HTTPException(413, f"the body is larger than {self._limit // 1_000_000} MB; {mend}")
        return message

    async def _in_time(self) -> Message:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(GRACE_SECONDS + self._seen / self._min_rate - self._waited):
                return await self._receive()
        except TimeoutError:
            _log.info("body came too slowly", path=self._path, received=self._seen)
            if self.has_answered:
                return {"type": "http.disconnect"}
            raise HTTPException(
                408,
                f"only {self._seen} bytes of the body came in {self._waited + time.monotonic() - begun:.0f} s; send it "
                "faster, or lower ROLLOUTPOOL_MIN_UPLOAD_KB",
                headers={"Connection": "close"},
            ) from None
        finally:
            self._waited += time.monotonic() - begun
