"""Publisher: turns queued rollouts into Celery messages.

Accepted rollouts wait in an outbox in Redis, in the order of the scheduler. The broker's queues are kept short, so that
a more urgent batch that comes later need not wait until a long queue is empty. A rollout travels as follows:

1. `pump` reserves tickets: one script takes rollouts out of the outbox, as many as the broker's window has room for,
   and writes each into `published` with the time on Redis' clock. In a busy pool it waits some milliseconds first, so
   that rollouts which are submitted one by one come together.
2. The tickets go to Celery's queue in one pipeline, several rollouts per message where many wait or run.
3. A worker takes the message and claims each of its rollouts. The claim removes it from `published`.
4. If the process dies between 1 and 2, the rollout is in `published` alone. `recover` finds it: all that waits in
   its queue was published later than it, so it must have been lost, and goes back into the outbox.
5. Where only some workers can run a rollout, its ticket goes to a queue that only those of one offer read
   (`store/lanes.py`). Once a second `follow_offers` notes which offers there are.

Invariant: a queued rollout is in an outbox, or in the broker, or older in `published` than all that waits in its
queue. A crash therefore delays a ticket and loses none. A ticket that is published twice does no harm, because only
one worker's claim succeeds.
"""

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from kombu.exceptions import KombuError, OperationalError

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.queue.celery_app import (
    PREFLIGHT_NAME,
    TASK_NAME,
    make_celery,
    offer_queue,
    queue_name,
)
from rolloutpool_common.queue.kombu_compat import batched, oldest_headers, purge
from rolloutpool_common.store import Store, StoreUnavailable, Ticket
from rolloutpool_common.store.keys import uid_of

_log = logging.getLogger(__name__)

HEADER_PUBLISHED = "rolloutpool_published_ms"
"""Milliseconds on Redis' clock at which the ticket was taken out of the outbox."""

PART_OF_SLOTS = 8
"""A message brings a worker at most 1/8 of its slots: the worker takes it with one slot free, and the rest of it waits
there, even if another worker has room meanwhile."""
SPREAD = 4
"""A message brings at most a quarter of the rollouts that a worker has on average, so that none idles while another has
many. The last ones of a queue thus become 4 messages per worker, where nothing else runs."""
GATHER_SECONDS = 0.01
"""Between two rounds in a busy pool. At 400 rollouts a second four come together; each of them runs for longer."""
WORKERS_SECONDS = 5.0
"""How long the list of workers is used before it is read again."""
BATCH = 500
"""Messages per pipeline: 186 µs per ticket instead of 787 µs one by one."""
SLACK_MS = 5000
"""A ticket that was published more recently may still be on its way into the broker."""


def most_per_message(slots: int, per_message: int) -> int:
    """Computes how many rollouts one message may bring."""
    return max(1, min(per_message, slots // PART_OF_SLOTS))


class Publisher:
    """Moves tickets from the outboxes into the broker. Many processes may do this at once."""

    def __init__(self, store: Store, redis_url: str, *, per_message: int = 1) -> None:
        """Prepares without connecting."""
        self._store = store
        self._celery = make_celery(redis_url)
        self._allowed = per_message
        self._workers = self._most = 1
        self._open = 0
        """Rollouts that had not ended when something was reserved last."""
        self._looked = self._published = -math.inf
        self._running = asyncio.Lock()
        # kombu's producers must not be used by two threads at once.
        self._wire = threading.Lock()

    async def pump(self) -> int:
        """Publishes what the broker's window has room for."""
        published = 0
        async with self._running:
            if self._is_busy():
                await asyncio.sleep(self._published + GATHER_SECONDS - time.monotonic())
            is_full = True
            # Fewer than were asked for means that nothing waits, or that the window is full.
            while is_full:
                is_full = False
                for priority, tickets, more_waiting, opened in await self._store.outbox.reserve_all(BATCH):
                    if not tickets:
                        continue
                    self._open = opened
                    per_message = await self._per_message(more_waiting)
                    await asyncio.to_thread(self._publish, priority, tickets, per_message)
                    published += len(tickets)
                    is_full = is_full or len(tickets) == BATCH
                    self._published = time.monotonic()
        return published

    def _is_busy(self) -> bool:
        """Whether so much runs that a message may bring several rollouts."""
        return min(self._most, self._share()) > 1

    def _share(self) -> int:
        return math.ceil(self._open / (SPREAD * self._workers))

    async def _per_message(self, more_waiting: bool) -> int:
        if self._allowed == 1:
            return 1
        if time.monotonic() - self._looked > WORKERS_SECONDS:
            known = await self._store.workers.known()
            slots = [w.slots for w in known if w.alive and w.role is WorkerRole.SHARED and not w.draining]
            self._workers = max(len(slots), 1)
            self._most = most_per_message(min(slots, default=1), self._allowed)
            self._looked = time.monotonic()
        return self._most if more_waiting else min(self._most, self._share())

    async def recover(self) -> int:
        """Puts tickets back into the outbox that were lost on their way into the broker."""
        moved = 0
        # What was never published, or is claimed, can't be lost.
        if not await self._store.outbox.any_published():
            return 0
        for priority in Priority:
            # The clock before the queue: of an empty queue we know only that what was published by then is not in it.
            now = await self._store.outbox.now_ms()
            for offer in ("", *await self._store.outbox.routes(priority)):
                oldest = await asyncio.to_thread(self._oldest_waiting_ms, queue_name(priority, offer))
                moved += await self._store.outbox.lost(priority, min(now, oldest or now) - SLACK_MS, offer=offer)
        if moved:
            _log.warning("%d tickets were lost on their way into the broker and are published again", moved)
        return moved

    async def follow_offers(self) -> None:
        """Notes what the live workers offer, and empties the queues of offers that nobody has any more."""
        for priority, offer in await self._store.offers.look():
            await asyncio.to_thread(self._purge, queue_name(priority, offer))

    async def ask_preflight(self, request_id: str, urls: Sequence[str]) -> None:
        """Asks for a worker to try callback endpoints. The worker leaves its answer with `store.preflights`."""
        about = f"preflight={request_id} endpoints={len(urls)}"
        await self._ask(PREFLIGHT_NAME, (request_id, list(urls)), about, queue_name(Priority.HIGH))

    async def ask_worker(self, task: str, subject: str, needs: Sequence[str]) -> None:
        """Asks for a worker that has all of this to do what is in the store under an id; raises `StoreUnavailable`.

        While no worker has it, nobody is asked: whoever asks how far it is asks again.
        """
        offer = await self._store.offers.queue_for(needs)
        if offer is not None:
            await self._ask(task, (subject,), f"{task.rpartition('.')[2]}={subject}", _queue(Priority.DEFAULT, offer))

    async def _ask(self, task: str, args: tuple[Any, ...], about: str, queue: Any) -> None:
        now = await self._store.outbox.now_ms()
        await asyncio.to_thread(self._send_request, task, args, about, queue, now)

    def _send_request(self, task: str, args: tuple[Any, ...], about: str, queue: Any, now: float) -> None:
        with self._wire:
            try:
                self._celery.send_task(
                    task,
                    args=args,
                    queue=queue,
                    argsrepr=about,
                    kwargsrepr="",
                    ignore_result=True,
                    headers={HEADER_PUBLISHED: now},
                    expires=30,
                )
            except (OperationalError, KombuError, OSError) as error:
                raise StoreUnavailable(f"the broker does not take tickets ({type(error).__name__})") from None

    def _purge(self, queue: str) -> None:
        with self._wire:
            try:
                with self._celery.connection_for_write() as connection:
                    purge(connection, queue)
            except (OperationalError, OSError) as error:
                raise StoreUnavailable(f"the broker does not answer ({type(error).__name__})") from None

    def close(self) -> None:
        """Closes the connections to the broker."""
        self._celery.close()

    def _publish(self, priority: Priority, tickets: Sequence[Ticket], per_message: int) -> None:
        with self._wire:
            try:
                with self._celery.producer_pool.acquire(block=True) as producer, batched(producer, BATCH):
                    for together in _grouped(tickets, attrgetter("offer")):
                        for start in range(0, len(together), per_message):
                            self._send(producer, priority, together[start : start + per_message])
            except (OperationalError, KombuError, OSError) as error:
                raise StoreUnavailable(f"the broker does not take tickets ({type(error).__name__})") from None

    def _send(self, producer: Any, priority: Priority, tickets: Sequence[Ticket]) -> None:
        refs = [[ticket.batch_id, ticket.index] for ticket in tickets]
        self._celery.send_task(
            TASK_NAME,
            args=(refs,),
            # A ticket that is published again, because it was lost or its rollout goes on, is the same one to Flower.
            # Under a new id the old one would be pending there for ever.
            task_id=uid_of(tickets[0].batch_id, tickets[0].index),
            queue=_queue(priority, tickets[0].offer),
            producer=producer,
            argsrepr=" ".join(map(_shown, _grouped(tickets, attrgetter("batch_id")))),
            shadow=_name(tickets),
            kwargsrepr="",
            ignore_result=True,
            # All tickets of one `reserve` have the same time.
            headers={HEADER_PUBLISHED: tickets[0].published_ms},
        )

    def _oldest_waiting_ms(self, queue: str) -> float | None:
        """Reads when the oldest message of a queue was published; None where the queue is empty."""
        with self._wire:
            try:
                with self._celery.connection_for_write() as connection:
                    headers = oldest_headers(connection, queue)
            except (OperationalError, OSError) as error:
                raise StoreUnavailable(f"the broker does not answer ({type(error).__name__})") from None
        return None if headers is None else float(headers[HEADER_PUBLISHED])


def _queue(priority: Priority, offer: str) -> Any:
    """The queue as Celery takes it (celery-types wants a name): its settings do not know the queues of offers."""
    return offer_queue(priority, offer) if offer else queue_name(priority)


def _name(tickets: Sequence[Ticket]) -> str | None:
    """The name under which Flower shows a message: its batch, so that a batch can be filtered; None is the task's own.

    Batches of one, as those of protocol v1, have no names of their own: Celery and Flower keep each name for ever.
    """
    batches = {ticket.batch_id for ticket in tickets if ticket.batch_size > 1}
    if len(batches) > 1:
        return "several batches"
    return f"batch {batches.pop()}" if batches else None


def _grouped(tickets: Sequence[Ticket], by: Callable[[Ticket], str]) -> Iterable[list[Ticket]]:
    groups: dict[str, list[Ticket]] = {}
    for ticket in tickets:
        groups.setdefault(by(ticket), []).append(ticket)
    return groups.values()


def _shown(tickets: list[Ticket]) -> str:
    """The tickets of one batch as Flower shows them."""
    shown = f"batch={tickets[0].batch_id} index={','.join(str(ticket.index) for ticket in tickets)}"
    # Callers choose the names of groups. Quoted, a comma or blank in one cannot be taken for the end of it.
    groups = dict.fromkeys(json.dumps(ticket.group) for ticket in tickets if ticket.group)
    return f"{shown} group={','.join(groups)}" if groups else shown
