"""Says what the live workers offer, as `reserve.lua` reads it: one entry for each different offer.

A worker's record says what it offers. Workers of earlier releases say it only in their announcement, which is read here
on their behalf; one that cannot be read offers nothing. They read no queue of their own (`lanes.py`).
"""

import logging
from collections.abc import Iterable

import orjson

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import spell
from rolloutpool_common.protocol.workers import UnreadableWorker
from rolloutpool_common.store import keys
from rolloutpool_common.store.announcements import LATE_SECONDS, offer_of, read_announcement
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

_log = logging.getLogger(__name__)


class Offers:
    """The offers in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def look(self) -> list[tuple[Priority, str]]:
        """Notes what the live workers offer, and puts back the tickets of queues that nobody reads any more.

        Returns these queues, by class and offer: their messages are left.
        """
        late_ms = int(LATE_SECONDS * 1000)
        answer = named(await self._connection.script("offers", late_ms))
        gone = answer["gone"]
        if answer["unread"]:
            read = [part for worker, about in answer["unread"] for part in (worker, _shown_offer(worker, about))]
            answer = named(await self._connection.script("offers", late_ms, *read))
        if answer["risen"]:
            _log.warning(
                "the last worker of an earlier release is gone: the data is of this release now, and only it reads it"
            )
        return [(Priority(priority.decode()), offer.decode()) for priority, offer in gone]

    async def queue_for(self, needs: Iterable[str]) -> str | None:
        """Finds the queue for a request that not every worker can carry out."""
        needed = frozenset(needs)
        with store_errors():
            noted = await self._redis.hgetall(keys.OFFERS)
        every = True
        suited: list[tuple[int, str]] = []
        for digest, text in noted.items():
            if digest == b"read":
                continue
            workers, routes, offer = text.decode().split(" ", 2)
            if not needed.issubset(orjson.loads(offer.partition(" ")[2])):
                every = False
            elif routes == "1":
                suited.append((int(workers), digest.decode()))
        if every:
            return ""
        return max(suited)[1] if suited else None


def _shown_offer(worker_id: bytes, about: bytes) -> str:
    read = read_announcement(worker_id.decode(), {b"about": about}, 0.0, subscribed=False)
    return spell(() if isinstance(read, UnreadableWorker) else offer_of(read))
