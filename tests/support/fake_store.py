"""A real `Store` over fakeredis: our Lua scripts run, and no server is started.

What fakeredis cannot do, and what integration tests with a real Redis cover instead: it has no `INFO`, so the epoch of
a connection is not read and the reconciler does not run; it knows no outage, no time-out and no restart.
"""

from typing import Any

from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store
from rolloutpool_common.store.connection import Connection

__all__ = ["FakeConnection", "FakeServer", "fake_store"]


class FakeConnection(Connection):
    """Connections to a fake server. `_client` is the seam: it makes every client that a store uses."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        super().__init__("redis://fake")

    def _client(self, max_connections: int, socket_timeout: float | None) -> Any:
        return FakeRedis(server=self._server, version=(7, 4))


def fake_store(server: FakeServer | None = None) -> Store:
    """An empty store, or another process' view of the same server."""
    return Store(FakeConnection(server or FakeServer()), SECRETS)
