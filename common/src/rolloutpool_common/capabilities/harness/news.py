"""News wakes a process: a door of replies, a worker of new calls. It is a hint, and loses what nobody waits for."""

from typing import Any, Self

import orjson

from rolloutpool_common.store import Store, keys

BLOCK_SECONDS = 1.0
"""Who listens, and is to stop, notices after so long at the latest."""


class News:
    """Hears, for one process, what was put into its list: of new calls, or of replies. Loses what nobody waits for."""

    def __init__(self, store: Store, key: str) -> None:
        self._key = key
        self._line = store.connection.listener()

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
        found = await self._line.command("BLPOP", self._key, BLOCK_SECONDS)
        return None if found is None else bytes(found[1])

    @staticmethod
    def reply(news: bytes) -> tuple[str, dict[str, Any]]:
        """Reads what a door hears: whose reply, as `{uid} {n}`, and the reply."""
        uid, n, text = news.split(b" ", 2)
        return f"{uid.decode()} {n.decode()}", orjson.loads(text)

    async def close(self) -> None:
        """Disconnects."""
        await self._line.close()
