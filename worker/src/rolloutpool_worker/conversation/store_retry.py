"""A store that does not answer, or is full: a rollout's write waits until Redis takes it.

If a rollout gave up instead, it would stay claimed by a worker that lives and no longer runs it, and nothing would ever
notice. Waiting is safe: if the rollout has lost its claim meanwhile, the store refuses the write (`ClaimLost`). Only a
worker that shuts down gives up; the reconciler then finds the claim of a dead worker and queues the rollout again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.store import StoreFull, StoreUnavailable
from rolloutpool_common.store.write_waits import WriteWaits
from rolloutpool_worker.drain import Drain

_log = logging.getLogger(__name__)

BACKOFF = Backoff(first_s=0.2, longest_s=5.0)
WARNINGS = 5
"""Failures in a row that are logged. After those the pauses have their full length, and more lines say nothing new."""

T = TypeVar("T")


async def retry_store(
    drain: Drain,
    uid: str,
    call: Callable[[], Awaitable[T]],
    *,
    after: StoreUnavailable | StoreFull | None = None,
    waits: WriteWaits | None = None,
) -> T:
    """Calls the store until it answers; `waits` gets the pauses in between."""
    failed, failures = after, 0
    while True:
        if failed is not None:
            # A process that shuts down must end within its drain time, and the reconciler then finds the claim.
            if drain.begun:
                raise failed
            failures += 1
            if failures <= WARNINGS:
                log_event(_log, logging.WARNING, "rollout waits for the store", rollout_uid=uid, error=failed.message)
            pause = BACKOFF.delay_s(failures)
            if waits is not None:
                waits.redis += pause
            await asyncio.sleep(pause)
        try:
            return await call()
        except (StoreUnavailable, StoreFull) as error:
            failed = error
