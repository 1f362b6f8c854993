"""TurnClient: how one turn is asked, whoever speaks HTTP.

`Http1Client` is the way of each turn. `HttpxTurns` does the same through httpx' requests and responses: it is slower,
and the other is compared with it. The setting `ROLLOUTPOOL_TURN_CLIENT=httpx` chooses it where a trainer speaks HTTP as
only a large library understands it. One suite of tests holds both to the same answers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

import httpx

from rolloutpool_worker.policy.refusal import MOST_BYTES, READ_SECONDS
from rolloutpool_worker.policy.transport import AiohttpTransport

_NAMES: dict[bytes, str] = {}
"""Names of headers as servers write them, and in lower case."""
_MOST_NAMES = 1024


class TurnAnswer(NamedTuple):
    """A reply of any status."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    data: bytes
    """The body; empty where it is longer than allowed."""
    is_whole: bool
    """Whether the body is here, and not longer than allowed or, of an error, too slow."""
    discard: Callable[[], None]
    """Closes the connection by which it came, whatever it is used for now."""


class TurnClient(Protocol):
    """How turns are asked: this client's way, or httpx' (`HttpxTurns`)."""

    seconds: float
    """For the reply to a call that brings no limit of its own."""

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        most_bytes: int,
        seconds: float | None = None,
    ) -> TurnAnswer:
        """Makes one call and reads its reply."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


def late(seconds: float) -> TimeoutError:
    """Makes the error of a call that took too long."""
    return TimeoutError(f"the reply was not whole after {seconds:g} s")


def read_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns a reply's headers by their names in lower case; several of one name are joined by commas."""
    found: dict[str, str] = {}
    for line, value in raw:
        name = _NAMES.get(line) or _name_of(line)
        text = _text(value)
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


class HttpxTurns:
    """The same through httpx' requests and responses, for a comparison and for the day when this client fails."""

    def __init__(self, transport: AiohttpTransport) -> None:
        """`transport` has the connections; who made it closes it."""
        self._transport = transport
        self.seconds = transport.timeout.read or 0.0
        self._connect = transport.timeout.connect or 0.0

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        most_bytes: int,
        seconds: float | None = None,
    ) -> TurnAnswer:
        """See `TurnClient.ask`."""
        reading = self.seconds if seconds is None else seconds
        limits = httpx.Timeout(reading, connect=self._connect)
        # With `content`, httpx would add Host and Content-Length, which the transport does as well.
        request = httpx.Request(
            method,
            url,
            headers=httpx.Headers(dict(headers), encoding="utf-8"),
            stream=httpx.ByteStream(body),
            extensions={"timeout": limits.as_dict()},
        )
        try:
            async with (
                # A read's limit holds for each read alone, and a reply may trickle for ever.
                asyncio.timeout(whole := reading + self._connect),
                aclosing(await self._transport.handle_async_request(request)) as response,
            ):
                data = await _read(response, most_bytes)
        except TimeoutError as error:
            raise late(whole) from error
        raw = [(name.encode("latin-1"), value.encode()) for name, value in response.headers.multi_items()]
        discard = response.extensions["discard"]
        return TurnAnswer(response.status_code, read_headers(raw), data or b"", data is not None, discard)

    async def aclose(self) -> None:
        """Closes nothing: the transport is its owner's."""


async def _read(response: httpx.Response, most_bytes: int) -> bytes | None:
    """Reads a body; None where it is longer than allowed or, of an error, too slow."""
    if response.status_code >= httpx.codes.MULTIPLE_CHOICES:
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await _read_up_to(response, MOST_BYTES)
        except (TimeoutError, httpx.HTTPError):
            return None
    return await _read_up_to(response, most_bytes)


async def _read_up_to(response: httpx.Response, most_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    # Raw, because the transport has decompressed it.
    async for part in response.aiter_raw():
        size += len(part)
        if size > most_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def _name_of(line: bytes) -> str:
    name = line.decode("latin-1").lower()
    # Each server sends the same ones each time.
    if len(_NAMES) < _MOST_NAMES:
        _NAMES[line] = name
    return name


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
