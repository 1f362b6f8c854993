"""Holds what the routes of one API process share: store, publisher, background work, and how a request waits.

Every wait goes through `wait` or `pause`, so that `stop` reaches it: the request is answered 503 at once, and the
caller loses nothing by asking again.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Literal

import structlog
from fastapi import Depends, Request

from rolloutpool_api.body_process import BodyProcess
from rolloutpool_api.capacity import RecentCapacity
from rolloutpool_api.errors import MemoryShort, QueueFull, QuotaExceeded, ShuttingDown
from rolloutpool_api.key_ring import KeyRing
from rolloutpool_api.reconciler import Reconciler
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.process import failpoints
from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.process.metrics import LONG_POLLS
from rolloutpool_common.process.reporting import Reporter
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import (
    NewBatch,
    NoRoom,
    OverQuota,
    RefusalCause,
    SecretStore,
    Store,
    StoreError,
    SubmitLimits,
    Submitted,
    TooManyOpen,
    Watch,
)
from rolloutpool_common.store.records import Capacity
from rolloutpool_common.store.staging import size_of
from rolloutpool_common.store.usage import OwnerUsage

_log = structlog.stdlib.get_logger(__name__)

LARGE_AT_ONCE = 4
"""Large bodies that are taken in at once, each held in memory. More would only wait for the one process that reads."""
LEASE_SECONDS = 2.0
"""Between two renewals of the lease of a batch whose owner waits; the shortest lease has 10 s."""
ASK_REDIS_AGAIN_SECONDS = 5.0
"""Until Redis' settings are looked at again, where it does not answer when the API starts."""


class ApiServices:
    """The services of one API process, which every route gets as a parameter (`ServicesDep`)."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.keys = KeyRing(settings)
        self.restrictions = Restrictions.of(settings)
        secrets = SecretStore.load(settings.secrets_file)

        def open_store() -> Store:
            return Store.open(settings.redis_url.get_secret_value(), secrets=secrets)

        self.store = open_store()
        self._capacity = RecentCapacity(self.store)
        self.slots = asyncio.Semaphore(settings.max_concurrent_rollouts)
        self.reader = BodyProcess(settings)
        self.large_bodies = asyncio.Semaphore(LARGE_AT_ONCE)
        self._publisher = Publisher(self.store, settings.celery_url, per_message=settings.rollouts_per_ticket)
        self._reconciler = Reconciler(
            open_store,
            self._publisher,
            self.store.signals,
            stalled_s=settings.stalled_seconds,
            new_bytes=settings.reserve_bytes,
        )
        self._redis_check = BackgroundTask("redis settings")
        self._stopping = asyncio.Event()
        self.reporter = Reporter(
            self.store.measures,
            component="api",
            process=f"api-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            version=version("rolloutpool-api"),
        )
        """Reports what this process measures."""
        self.data_name: str | None = None
        """A name of what Redis holds, once somebody has asked for it."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ApiServices"]:
        """Runs the background work while the context lasts. Needs no Redis to begin."""
        await self.store.signals.start()
        self._reconciler.start()
        self.reporter.start()
        self._redis_check.start(self._log_redis_warnings())
        try:
            yield self
        finally:
            # Requests first, then the tasks that use the store, and the store last.
            self.stop()
            await self._redis_check.stop()
            await self.reporter.stop()
            await self._reconciler.stop()
            await self.reader.stop()
            self._publisher.close()
            await self.store.close()

    async def _log_redis_warnings(self) -> None:
        """Logs once which settings of Redis put accepted work at risk, as soon as Redis answers."""
        while True:
            try:
                warnings = await self.store.warnings()
            except StoreError:
                await asyncio.sleep(ASK_REDIS_AGAIN_SECONDS)
                continue
            for warning in warnings:
                _log.warning("redis setting", warning=warning)
            return

    def stop(self) -> None:
        """Wakes all waiting requests, which then answer 503. Call it before waiting for open requests to end."""
        self._stopping.set()
        self.store.signals.wake_all()

    @property
    def stopping(self) -> bool:
        """Whether this process is about to end."""
        return self._stopping.is_set()

    async def submit(self, new: NewBatch) -> Submitted:
        """Makes a batch durable and has it published."""
        settings, capacity, size = self.settings, await self._capacity.look(), size_of(new)
        if new.attaches:
            new = replace(new, attachment_bytes=settings.attachment_bytes)
        limits = SubmitLimits(
            max_open=settings.max_open,
            quota=self.keys.quota(new.owner),
            new_bytes=settings.reserve_bytes,
            memory_bytes=self._in_use(capacity),
            memory_limit_bytes=capacity.max_bytes,
        )
        try:
            # The commit counts exactly. Here it is only seen to that what can't be accepted is not staged either.
            if capacity.max_bytes and limits.memory_bytes + size > capacity.max_bytes:
                # Whoever asks again may only need to learn its batch's id, to read and to delete it.
                if (again := await self.store.batches.repeated(new)) is not None:
                    return again
                await self.store.totals.note_refused(RefusalCause.MEMORY, new.owner)
                raise NoRoom
            submitted = await self.store.batches.submit(new, limits, retention_s=settings.retention_hours * 3600)
        except TooManyOpen as full:
            raise QueueFull(full.message) from None
        except OverQuota as over:
            _log.info("submit refused", owner=new.owner, cause=over.cause)
            raise QuotaExceeded(over.message, cause=over.cause) from None
        except NoRoom:
            raise MemoryShort from None
        failpoints.hit("api.commit_before_answer")
        # A repeated request finds its batch in the outbox or beyond it, so there is nothing to publish.
        if submitted.created:
            self._capacity.note_accepted(size)
            self.publish_soon()
        return submitted

    def _in_use(self, capacity: Capacity) -> int:
        """Returns what Redis uses, with the vocabularies that the setting allows and workers have not written yet."""
        return capacity.used_bytes + max(self.settings.token_pieces_bytes - capacity.pieces_bytes, 0)

    def has_room(self, capacity: Capacity, owner: str, size: int) -> bool:
        """Tells whether Redis has room for more of an owner, beside what is reserved for open rollouts."""
        # A Redis without a limit of its own (0) is not asked.
        if not capacity.max_bytes:
            return True
        usage, used = capacity.usage, self._in_use(capacity) + size
        if used + usage.needs(self.settings.reserve_bytes) <= capacity.max_bytes:
            return True
        share = capacity.max_bytes // len(usage.owners.keys() | {owner})
        has_share = len(usage.owners.keys() - {owner}) > 0
        return has_share and usage.owners.get(owner, OwnerUsage()).memory + size <= share and used <= capacity.max_bytes

    async def takes_submits(self, capacity: Capacity) -> tuple[Literal["open", "limited", "closed"], str]:
        """Says whether a small batch would be accepted now: of all callers, of some, or of none; and why not of all."""
        if why := await self.store.why_no_writes():
            return "closed", why
        settings, usage, owners = self.settings, capacity.usage, self.keys.submitters
        reasons = []
        refused: set[str] = set()
        for owner in owners:
            held, names = usage.owners.get(owner, OwnerUsage()), len(usage.owners.keys() | {owner})
            if capacity.open_rollouts >= settings.max_open and (names == 1 or held.open >= settings.max_open // names):
                refused.add(owner)
        if refused:
            reasons.append("as many rollouts are open as ROLLOUTPOOL_MAX_OPEN allows")
        if short := {owner for owner in owners if not self.has_room(capacity, owner, settings.reserve_bytes)}:
            refused |= short
            reasons.append("Redis has too little room for the results of more rollouts")
        if not refused:
            return "open", ""
        state: Literal["limited", "closed"] = "closed" if refused == set(owners) else "limited"
        # Nobody's name: this is read without a key. The metrics have the names.
        return state, f"submits of {'all' if state == 'closed' else 'some'} keys are refused: {'; '.join(reasons)}"

    def too_little_memory(self, capacity: Capacity, slots: int) -> str | None:
        """Warns where Redis' memory, were it empty, would not hold as many rollouts as the workers have slots."""
        usage, limit = capacity.usage, capacity.max_bytes
        each = usage.total.reserved // usage.total.open if usage.total.open else self.settings.reserve_bytes
        if not limit or slots * each <= limit:
            return None
        return (
            f"Redis has {limit // 2**20:,} MB (`maxmemory`): room for {limit // each:,} rollouts of {each // 1024:,} "
            f"kB; the workers have {slots:,} slots, which can't all be used; raise `maxmemory`"
        )

    async def note_read(self, batch_id: str, reader: str) -> None:
        """Notes that somebody reads of a batch; if this is its owner, and it has a lease, that begins anew."""
        await self.store.batches.total(batch_id, None, reader=reader)

    @asynccontextmanager
    async def kept_lease(self, batch_id: str, reader: str | None) -> AsyncIterator[None]:
        """Keeps a batch's lease while its owner waits for something of it."""
        if reader is None or not await self.store.leases.is_held_by(batch_id, reader):
            yield
            return

        async def renew() -> None:
            while True:
                await asyncio.sleep(LEASE_SECONDS)
                # While Redis is away, the lease does not run out.
                with suppress(StoreError):
                    await self.store.leases.renew(batch_id)

        renewal = BackgroundTask("lease")
        renewal.start(renew())
        try:
            yield
        finally:
            await renewal.stop()

    def publish_soon(self) -> None:
        """Has accepted rollouts published now instead of at the next round. Returns at once."""
        self._reconciler.publish_soon()

    async def ask_preflight(self, request_id: str, urls: Sequence[str]) -> None:
        """Has a worker try callback endpoints."""
        await self._publisher.ask_preflight(request_id, urls)

    async def ask_worker(self, task: str, subject: str, *, needs: Sequence[str]) -> None:
        """Has a worker that has what is needed do something that is in the store, for a capability."""
        await self._publisher.ask_worker(task, subject, needs)

    async def wait(self, watch: Watch, seconds: float) -> bool:
        """Waits for an event of a watched batch."""
        # Before the wait, for a request that comes after `stop`; after it, for one that `stop` has woken.
        self.raise_if_stopping()
        with LONG_POLLS:
            happened = await watch.wait(max(seconds, 0))
        self.raise_if_stopping()
        return happened

    async def pause(self, seconds: float) -> None:
        """Waits before another attempt."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise ShuttingDown

    def raise_if_stopping(self) -> None:
        """Raises `ShuttingDown` if this process is about to end."""
        if self.stopping:
            raise ShuttingDown


# Async, because FastAPI would run a plain function in a thread, for each request.
async def _services(request: Request) -> ApiServices:
    services: ApiServices = request.app.state.services
    return services


ServicesDep = Annotated[ApiServices, Depends(_services)]
"""The process's services, as a route's parameter."""
