"""Reads the bodies of what programs ask, within the limits of a door."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive

from rolloutpool_api.capabilities.harness.answer import DoorRefusal
from rolloutpool_api.capabilities.harness.settings import DoorSettings

_OTHER = rb"(?:[^u]|u[^dD]|u[dD][0-7]|u[dD][89abAB]..\\u[dD][c-fC-F]..)"
"""An escape behind its backslash that is no half of a character; two halves that belong together are none."""
_ESCAPES = re.compile(rb"\\(?:(?P<others>%b(?:[^\\]*\\%b){0,500})|u[dD][89a-fA-F]..)" % (_OTHER, _OTHER), re.DOTALL)
"""A half, or up to 501 other escapes together: with a match for each, 16 MB of them would stop the door for seconds."""


async def read_body(receive: Receive, headers: Mapping[bytes, str], settings: DoorSettings) -> bytes:
    """Reads a body; raises `DoorRefusal` where it is too large, too slow, or compressed."""
    coding = headers.get(b"content-encoding", "identity")
    parts: list[bytes] = []
    left = int(settings.door_body_mb * 1_000_000)
    try:
        async with asyncio.timeout(settings.door_upload_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise DoorRefusal("invalid", "the request broke off")
                part = message.get("body", b"")
                left -= len(part)
                if left < 0:
                    raise DoorRefusal("large", "the request is larger than ROLLOUTPOOL_DOOR_BODY_MB")
                parts.append(part)
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise DoorRefusal("invalid", "the request came too slowly (ROLLOUTPOOL_DOOR_UPLOAD_SECONDS)") from None
    if coding != "identity":
        raise DoorRefusal("invalid", f"a door reads no compressed requests (content-encoding: {coding[:64]})")
    return b"".join(parts)


def parsed(body: bytes) -> dict[str, Any]:
    """Reads a JSON object; raises `DoorRefusal` where it is none. Half a character is read as U+FFFD.

    A program in JavaScript that cuts a tool's long output may cut a character in two, and sends the half as an escape.
    No tokenizer takes one, and the program would fail for it.
    """
    try:
        given = orjson.loads(body)
    except ValueError:
        try:
            given = orjson.loads(_ESCAPES.sub(_without_halves, body))
        except ValueError:
            raise DoorRefusal("invalid", "the request is no JSON") from None
    if not isinstance(given, dict):
        raise DoorRefusal("invalid", "the request must be an object")
    return given


def _without_halves(found: re.Match[bytes]) -> bytes:
    return found[0] if found["others"] else b"\\ufffd"
