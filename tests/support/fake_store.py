"""A real `Store` over fakeredis: our Lua scripts run, and no server is started.

What fakeredis cannot do, and what integration tests with a real Redis cover instead: it has no `INFO`, so the epoch of
a connection is not read and the reconciler does not run; it knows no outage, no time-out and no restart.
"""

import asyncio
from typing import Any

from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from tests.support.fake_session import FakeSession
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store
from rolloutpool_common.store.connection import Connection

__all__ = ["FakeConnection", "FakeServer", "fake_store"]


class _FakeTransport(asyncio.Transport):
    """The way to a fake server and back. Answers come as from a real one: not before `write` has returned."""

    def __init__(self, server: FakeServer, line: asyncio.Protocol) -> None:
        super().__init__()
        self._line, self._closing = line, False
        self._session = FakeSession(server, 0, client_class=FakeRedis)
        self._session.answer = self._answer

    def write(self, data: Any) -> None:
        """Carries out commands."""
        self._session.sendall(data)

    def _answer(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._line.data_received, data)

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closing

    def abort(self) -> None:
        """Ends the connection."""
        if not self._closing:
            self._closing = True
            self._session.close()
            asyncio.get_running_loop().call_soon(self._line.connection_lost, None)


class FakeConnection(Connection):
    """Connections to a fake server. `_client` and `_dial` are the seam: they make all that a store uses."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        super().__init__("redis://fake")

    async def _dial(self, line: asyncio.Protocol) -> object:
        line.connection_made(_FakeTransport(self._server, line))
        return None

    def _client(self, max_connections: int, socket_timeout: float | None) -> Any:
        return FakeRedis(server=self._server, version=(7, 4))


def fake_store(server: FakeServer | None = None) -> Store:
    """An empty store, or another process' view of the same server."""
    return Store(FakeConnection(server or FakeServer()), SECRETS)
