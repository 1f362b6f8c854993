"""News wakes a process: a door of replies, a worker of new calls. It is a hint, and loses what nobody waits for."""

from collections.abc import Callable
from typing import Any

import orjson

from rolloutpool_common.store import Store, keys


class News:
    """What is published for one process, of new calls or of replies."""

    def __init__(self, store: Store, channel: str) -> None:
        self._store = store
        self._channel = channel

    @classmethod
    def of_door(cls, store: Store, address: str) -> "News":
        """Hears replies: `{uid} {n} {reply}`."""
        return cls(store, f"{keys.PREFIX}door:{address}:ready")

    @classmethod
    def of_worker(cls, store: Store, worker_id: str) -> "News":
        """Hears the uids of sessions that have something new: `{uid}`, or `{uid} {call}` (`calls.told_calls`)."""
        return cls(store, keys.worker(worker_id, "calls"))

    async def listen(self, hear: Callable[[bytes], None]) -> None:
        """Gives news to `hear` until it is cancelled; raises `StoreError` where the connection ends."""
        await self._store.connection.subscribe(self._channel, hear)

    @staticmethod
    def reply(news: bytes) -> tuple[str, dict[str, Any]]:
        """Reads what a door hears: whose reply, as `{uid} {n}`, and the reply."""
        uid, n, text = news.split(b" ", 2)
        return f"{uid.decode()} {n.decode()}", orjson.loads(text)
