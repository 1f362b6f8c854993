"""Reads the bodies of what programs ask, within the limits of a door."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive

from rolloutpool_api.capabilities.harness.answer import DoorRefusal
from rolloutpool_api.capabilities.harness.settings import DoorSettings


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
            given = orjson.loads(_whole(body) if b"\\ud" in body or b"\\uD" in body else body)
        except (ValueError, RecursionError):
            raise DoorRefusal("invalid", "the request is no JSON") from None
    if not isinstance(given, dict):
        raise DoorRefusal("invalid", "the request must be an object")
    return given


def _whole(body: bytes) -> str:
    """Writes JSON once more, without halves of characters, which Python's own reader takes."""
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
