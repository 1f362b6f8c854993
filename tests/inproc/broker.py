"""The broker: queues of tickets in memory, which may lose, repeat and delay a message.

What Celery's own queues do is of no interest here; what a pool may rely on is that most messages come.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from tests.inproc.clock import PoolLoop

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import queue_name
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store, Ticket
from rolloutpool_common.store.keys import uid_of


@dataclass(frozen=True)
class Message:
    """Tickets that travel together."""

    queue: str
    uids: tuple[str, ...]
    published_ms: float


@dataclass
class BrokerFaults:
    """How often something happens to a message."""

    lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0


class Broker:
    """All queues."""

    def __init__(self, loop: PoolLoop, chance: random.Random) -> None:
        self.faults = BrokerFaults()
        self._loop, self._chance = loop, chance
        self._queues: defaultdict[str, deque[Message]] = defaultdict(deque)
        self._arrived = asyncio.Event()

    def put(self, message: Message) -> None:
        """Takes a message."""
        chance, faults = self._chance, self.faults
        if chance.random() < faults.lost:
            return
        if chance.random() < faults.twice:
            self._enter_later(message)
        if chance.random() < faults.late:
            self._enter_later(message)
            return
        self._enter(message)

    def take(self, queues: Sequence[str]) -> Message | None:
        """The next message of these queues, in their order."""
        for name in queues:
            if self._queues[name]:
                return self._queues[name].popleft()
        return None

    async def arrival(self) -> None:
        """Returns when a message has arrived since the call."""
        await self._arrived.wait()

    def oldest_ms(self, queue: str) -> float | None:
        """When the oldest message of a queue was published."""
        waiting = self._queues[queue]
        return min(message.published_ms for message in waiting) if waiting else None

    def purge(self, queue: str) -> None:
        """Empties a queue."""
        self._queues[queue].clear()

    def repeat(self, uids: Sequence[str], *, within_s: float) -> None:
        """Lets one more ticket of each rollout arrive, at some moment of the next seconds."""
        now_ms = self._loop.time() * 1000
        for uid in uids:
            message = Message(queue_name(Priority.DEFAULT), (uid,), now_ms)
            self._loop.call_later(within_s * self._chance.random(), self._enter, message, context=self._loop.outside)

    def _enter_later(self, message: Message) -> None:
        # Mostly while the rollout runs, and sometimes long after.
        seconds = self._chance.choice((1, 1, 30)) * self._chance.random()
        self._loop.call_later(seconds, self._enter, message, context=self._loop.outside)

    def _enter(self, message: Message) -> None:
        self._queues[message.queue].append(message)
        self._arrived.set()
        self._arrived = asyncio.Event()


class InprocPublisher(Publisher):
    """The product's publisher, before this broker. What it overrides is what speaks to Celery."""

    def __init__(self, store: Store, broker: Broker, *, per_message: int) -> None:
        super().__init__(store, "redis://127.0.0.1:9/0", per_message=per_message)
        self._broker = broker

    def _publish(self, priority: Priority, tickets: Sequence[Ticket], per_message: int) -> None:
        to: dict[str, list[Ticket]] = {}
        for ticket in tickets:
            to.setdefault(queue_name(priority, ticket.offer), []).append(ticket)
        for queue, some in to.items():
            for start in range(0, len(some), per_message):
                together = some[start : start + per_message]
                uids = tuple(uid_of(ticket.batch_id, ticket.index) for ticket in together)
                self._broker.put(Message(queue, uids, together[0].published_ms))

    def _oldest_waiting_ms(self, queue: str) -> float | None:
        return self._broker.oldest_ms(queue)

    def _purge(self, queue: str) -> None:
        self._broker.purge(queue)
