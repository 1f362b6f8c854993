"""What a trainer says in the body of an error status: the `message` of its JSON, in one short line, and nothing else.

Bodies of errors may be anything (a gateway's page, a traceback, the request itself with its prompts), so no other part
of them goes into errors, logs and results.
"""

import asyncio

import httpx
import orjson

__all__ = ["message_of", "read_message"]

MOST_BYTES = 8_192
READ_SECONDS = 2.0
"""A body that trickles must not hold up the next try."""
LONGEST = 200
"""Characters."""


async def read_message(response: httpx.Response, *, detail: bool = False) -> str:
    """Reads the message of an error; empty where there is none, where the body is large, or where it does not come.

    Args:
        response: With an error status; its body is unread.
        detail: See `message_of`.
    """
    data = b""
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MOST_BYTES:
                    return ""
    except (TimeoutError, httpx.HTTPError):
        return ""
    return message_of(data, detail=detail)


def message_of(data: bytes, *, detail: bool = False) -> str:
    """Finds the message in a body: `{"message": …}`, `{"error": {"message": …}}` or `{"error": "…"}`.

    Args:
        data: The whole body.
        detail: Whether `{"detail": "…"}` is one too. It is with SGLang; other servers may quote the request there.

    Returns:
        At most 200 characters that a terminal shows as they are; empty where there is none.
    """
    try:
        document = orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError):
        return ""
    error = document.get("error") if isinstance(document, dict) else None
    inner = error.get("message") if isinstance(error, dict) else error
    found = (
        document.get("message", inner or (document.get("detail") if detail else None))
        if isinstance(document, dict)
        else None
    )
    if not isinstance(found, str):
        return ""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(found.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
