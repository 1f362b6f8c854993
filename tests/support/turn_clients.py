"""Both ways to ask for a turn, for tests that hold them to the same answers."""

import contextlib
from collections.abc import AsyncIterator

from rolloutpool_worker.policy import AiohttpTransport, Http1Client, HttpxTurns, Resolver, TurnClient

KINDS = ("httptools", "httpx")
"""As the setting `ROLLOUTPOOL_TURN_CLIENT` calls them."""


@contextlib.asynccontextmanager
async def asking(kind: str, resolver: Resolver, *, timeout: float) -> AsyncIterator[TurnClient]:
    """Makes one and closes it."""
    if kind == "httptools":
        client = Http1Client(resolver, timeout=timeout)
        yield client
        await client.aclose()
        await resolver.close()
    else:
        transport = AiohttpTransport(resolver, timeout=timeout)
        yield HttpxTurns(transport)
        await transport.aclose()
