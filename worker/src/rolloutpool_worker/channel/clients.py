"""HTTP clients: one per rollout in flight, handed on from a free-list, over one TLS context.

httpcore polls every pooled connection on each request, so one client under 100 concurrent calls costs ten times as
much per call as one client per rollout (encode/httpx#3215). Building a TLS context costs 128 ms, so there is one.
"""

import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

__all__ = ["ClientPool"]

IDLE_PER_ORIGIN = 512


class ClientPool:
    """Clients by trainer endpoint, so that a connection to its port is found again."""

    def __init__(self, *, timeout: float) -> None:
        self._context = ssl.create_default_context()
        self._timeout = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._idle: dict[str, list[httpx.AsyncClient]] = defaultdict(list)

    @asynccontextmanager
    async def client(self, origin: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses meanwhile."""
        idle = self._idle[origin]
        client = idle.pop() if idle else self._new()
        try:
            yield client
        finally:
            client.cookies.clear()
            if len(idle) < IDLE_PER_ORIGIN:
                idle.append(client)
            else:
                await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=self._context,
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=30),
            trust_env=False,
            follow_redirects=False,
            headers={"User-Agent": "rolloutpool"},
        )

    async def close(self) -> None:
        """Closes all idle clients."""
        for idle in self._idle.values():
            for client in idle:
                await client.aclose()
        self._idle.clear()
