"""News wakes a process: a door of replies, a worker of new calls. It is a hint, and loses what nobody waits for."""

from contextlib import suppress
from typing import Any, Self

import orjson

from rolloutpool_common.store import Store, StoreError, keys
from rolloutpool_common.store.errors import store_errors

BLOCK_SECONDS = 1.0
"""Who listens, and is to stop, notices after so long at the latest."""


class News:
    """Hears, for one process, what was put into its list: of new calls, or of replies. Loses what nobody waits for."""

    def __init__(self, store: Store, key: str) -> None:
        self._key = key
        self._redis = store.connection.blocking()

    @classmethod
    def of_door(cls, store: Store, address: str) -> Self:
        """Hears replies: `{uid} {n} {reply}`."""
        return cls(store, f"{keys.PREFIX}door:{address}:ready")

    @classmethod
    def of_worker(cls, store: Store, worker_id: str) -> Self:
        """Hears the uids of sessions that have a new call."""
        return cls(store, keys.worker(worker_id, "calls"))

    async def next(self) -> bytes | None:
        """Waits for news; None where there is none for `BLOCK_SECONDS`."""
        with store_errors():
            found = await self._redis.blpop([self._key], timeout=BLOCK_SECONDS)
        return None if found is None else bytes(found[1])

    @staticmethod
    def reply(news: bytes) -> tuple[str, dict[str, Any]]:
        """Reads what a door hears: whose reply, as `{uid} {n}`, and the reply."""
        uid, n, text = news.split(b" ", 2)
        return f"{uid.decode()} {n.decode()}", orjson.loads(text)

    async def close(self) -> None:
        """Disconnects."""
        with suppress(StoreError), store_errors():
            await self._redis.aclose(close_connection_pool=True)
