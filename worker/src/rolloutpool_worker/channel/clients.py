"""HTTP clients: one per rollout in flight, handed on from a free-list, over one TLS context and one connector.

httpcore polls every pooled connection on each request, so one client under 100 concurrent calls costs ten times as
much per call as one client per rollout (encode/httpx#3215). Building a TLS context costs 128 ms, so there is one.
No client follows a redirect or reads the environment: both would lead past the connector's checks.
"""

import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore
import httpx

from rolloutpool_worker.channel.connector import Connector

__all__ = ["ClientPool"]

IDLE_PER_ORIGIN = 512
MAX_ORIGINS = 1024
"""Of trainers and webhooks; beyond, the clients of the one that was new first are closed."""
KEEPALIVE_SECONDS = 30


class ClientPool:
    """Clients by origin, so that a connection to its port is found again."""

    def __init__(self, connector: Connector, *, timeout: float) -> None:
        self._connector = connector
        self._context = ssl.create_default_context()
        self._timeout = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._idle: dict[str, list[httpx.AsyncClient]] = defaultdict(list)

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client for this URL's origin that nobody else uses meanwhile."""
        origin = "/".join(url.split("/", 3)[:3])
        if origin not in self._idle and len(self._idle) >= MAX_ORIGINS:
            await _close(self._idle.pop(next(iter(self._idle))))
        idle = self._idle[origin]
        client = idle.pop() if idle else self._new()
        try:
            yield client
        finally:
            client.cookies.clear()
            if len(idle) < IDLE_PER_ORIGIN and self._idle.get(origin) is idle:
                idle.append(client)
            else:
                await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=_Transport(self._connector, self._context),
            timeout=self._timeout,
            trust_env=False,
            follow_redirects=False,
            headers={"User-Agent": "rolloutpool"},
        )

    async def close(self) -> None:
        """Closes all idle clients."""
        while self._idle:
            await _close(self._idle.popitem()[1])


class _Transport(httpx.AsyncHTTPTransport):
    """httpx' own over our connector, which httpx has no parameter for."""

    def __init__(self, connector: Connector, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=4,
            max_keepalive_connections=2,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=connector,
        )


async def _close(clients: list[httpx.AsyncClient]) -> None:
    for client in clients:
        await client.aclose()
