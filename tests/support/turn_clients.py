"""Both ways to ask for a turn, for tests that hold them to the same answers."""

import contextlib
from collections.abc import AsyncIterator

from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport
from rolloutpool_worker.policy.turn_client import HttpxTurns, TurnClient

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
