"""Preflights: what a worker found out about callback endpoints, on its way to the API process that asked."""

from rolloutpool_common.protocol.operations import Preflight
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

KEEP_SECONDS = 60
"""An answer that the API does not read within this time expires."""


class Preflights:
    """The answers that wait in one store; each is read once, and expires by itself."""

    def __init__(self, connection: Connection) -> None:
        self._redis = connection.redis

    async def answer(self, request_id: str, found: Preflight) -> None:
        """Leaves an answer for the API process that asked; it expires after `KEEP_SECONDS`."""
        with store_errors():
            await self._redis.set(keys.preflight(request_id), found.model_dump_json(), ex=KEEP_SECONDS)

    async def take(self, request_id: str) -> Preflight | None:
        """Reads and removes the answer; None while there is none."""
        with store_errors():
            found: bytes | None = await self._redis.getdel(keys.preflight(request_id))
        return None if found is None else Preflight.model_validate_json(found)
