"""Publishing: from the outbox into Celery's queues.

Invariant: at any moment a queued rollout is in an outbox, in the broker, or older in `published` than everything
that waits in the broker: then it was lost between the two and `recover` puts it back. So a crash between reserving
and publishing delays a ticket, and loses none. Publishing twice is harmless, because the claim decides.
"""

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from kombu.exceptions import KombuError, OperationalError

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.queue.celery_app import KEY_PREFIX, PREFLIGHT_NAME, TASK_NAME, make_celery, queue_name
from rolloutpool_common.store import Store, StoreUnavailable, Ticket

__all__ = ["Publisher", "most_per_message"]

_log = logging.getLogger(__name__)

HEADER_PUBLISHED = "rolloutpool_published_ms"
"""When the ticket was taken out of the outbox, on Redis' clock."""

PART_OF_SLOTS = 8
"""A message brings a worker at most this part of its slots, since it takes none before it has room for a whole one."""
SPREAD = 4
"""Messages per worker that the last rollouts of a queue make at least, so that none idles while another has many."""
WORKERS_SECONDS = 5.0
"""How long the list of workers is believed."""
BATCH = 500
"""Messages per pipelined publish: 186 µs per ticket instead of 787 µs one by one."""
SLACK_MS = 5000
"""A ticket younger than this is on its way, not lost."""


def most_per_message(slots: int, per_message: int) -> int:
    """Rollouts that one message may bring a worker with so many slots."""
    return max(1, min(per_message, slots // PART_OF_SLOTS))


class Publisher:
    """Moves tickets; safe to use from many processes at once."""

    def __init__(self, store: Store, redis_url: str, *, per_message: int = 1) -> None:
        """`per_message`: rollouts per message, where many wait and workers have the slots."""
        self._store = store
        self._celery = make_celery(redis_url)
        self._allowed = per_message
        self._workers = self._most = 1
        self._looked = -math.inf
        self._running = asyncio.Lock()
        # kombu's producers are not made for two threads at once.
        self._wire = threading.Lock()

    async def pump(self) -> int:
        """Publishes what the window has room for; returns how many rollouts that were.

        Raises `StoreUnavailable` when Redis does not answer; then `recover` finds what was reserved.
        """
        published = 0
        async with self._running:
            for priority in Priority:
                while tickets := await self._store.outbox.reserve(priority, BATCH):
                    per_message = await self._per_message(priority, len(tickets))
                    await asyncio.to_thread(self._publish, priority, tickets, per_message)
                    published += len(tickets)
        return published

    async def _per_message(self, priority: Priority, count: int) -> int:
        if self._allowed == 1:
            return 1
        if time.monotonic() - self._looked > WORKERS_SECONDS:
            slots = [w.slots for w in await self._store.workers.known() if w.alive and w.role is WorkerRole.SHARED]
            self._workers = max(len(slots), 1)
            self._most = most_per_message(min(slots, default=1), self._allowed)
            self._looked = time.monotonic()
        if await self._store.outbox.has_more(priority):
            return self._most
        return min(self._most, math.ceil(count / (SPREAD * self._workers)))

    async def recover(self) -> int:
        """Puts tickets back that were published and are no longer in the broker; returns how many."""
        moved = 0
        for priority in Priority:
            now = await self._store.outbox.now_ms()
            oldest = await asyncio.to_thread(self._oldest_waiting_ms, priority)
            moved += await self._store.outbox.lost(priority, min(now, oldest or now) - SLACK_MS)
        if moved:
            _log.warning("%d tickets were lost on their way into the broker and are published again", moved)
        return moved

    async def ask_preflight(self, request_id: str, urls: Sequence[str]) -> None:
        """Has a worker try callback endpoints; it leaves its answer with `store.preflights`."""
        now = await self._store.outbox.now_ms()
        await asyncio.to_thread(self._send_preflight, request_id, list(urls), now)

    def _send_preflight(self, request_id: str, urls: list[str], now: float) -> None:
        with self._wire:
            try:
                self._celery.send_task(
                    PREFLIGHT_NAME,
                    args=(request_id, urls),
                    queue=queue_name(Priority.HIGH),
                    argsrepr=f"preflight={request_id} endpoints={len(urls)}",
                    kwargsrepr="",
                    ignore_result=True,
                    headers={HEADER_PUBLISHED: now},
                    expires=30,
                )
            except (OperationalError, KombuError, OSError) as error:
                raise StoreUnavailable(f"the broker does not take tickets ({type(error).__name__})") from None

    def close(self) -> None:
        """Closes the connections to the broker."""
        self._celery.close()

    def _publish(self, priority: Priority, tickets: Sequence[Ticket], per_message: int) -> None:
        with self._wire:
            try:
                with self._celery.producer_pool.acquire(block=True) as producer:
                    if not cast(Any, producer).supports_batch_publish:
                        raise RolloutPoolError(
                            "kombu's pipelined publishing is off: take retry_on_timeout out of the broker's options"
                        )
                    with cast(Any, producer).batch(BATCH):
                        for start in range(0, len(tickets), per_message):
                            self._send(producer, priority, tickets[start : start + per_message])
            except (OperationalError, KombuError, OSError) as error:
                raise StoreUnavailable(f"the broker does not take tickets ({type(error).__name__})") from None

    def _send(self, producer: Any, priority: Priority, tickets: Sequence[Ticket]) -> None:
        refs = [[ticket.batch_id, ticket.index] for ticket in tickets]
        self._celery.send_task(
            TASK_NAME,
            args=(refs,),
            queue=queue_name(priority),
            producer=producer,
            argsrepr=" ".join(map(_shown, _by_batch(tickets))),
            kwargsrepr="",
            ignore_result=True,
            headers={HEADER_PUBLISHED: tickets[0].published_ms},
        )

    def _oldest_waiting_ms(self, priority: Priority) -> float | None:
        """When the oldest message of a queue was published at the latest; None when the queue is empty."""
        with self._wire:
            try:
                with self._celery.connection_for_write() as connection:
                    client = cast(Any, connection.default_channel).client
                    # kombu pushes on the left and pops on the right; it leaves LINDEX without its key prefix.
                    raw = client.lindex(KEY_PREFIX + queue_name(priority), -1)
            except (OperationalError, OSError) as error:
                raise StoreUnavailable(f"the broker does not answer ({type(error).__name__})") from None
        if raw is None:
            return None
        return float(json.loads(raw)["headers"][HEADER_PUBLISHED])


def _by_batch(tickets: Sequence[Ticket]) -> Iterable[list[Ticket]]:
    of: dict[str, list[Ticket]] = {}
    for ticket in tickets:
        of.setdefault(ticket.batch_id, []).append(ticket)
    return of.values()


def _shown(tickets: list[Ticket]) -> str:
    """The tickets of one batch as Flower shows them."""
    shown = f"batch={tickets[0].batch_id} index={','.join(str(ticket.index) for ticket in tickets)}"
    groups = dict.fromkeys(json.dumps(ticket.group) for ticket in tickets if ticket.group)
    return f"{shown} group={','.join(groups)}" if groups else shown
