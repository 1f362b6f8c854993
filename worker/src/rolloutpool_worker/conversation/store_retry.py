"""Outages of the store: what a rollout has to write is held here until Redis takes it.

A rollout that gave up at an outage would stay claimed by a worker that lives and no longer runs it, which nothing
would ever notice. Holding is safe: who has lost its claim meanwhile is told so by the fence. Only a worker that
shuts down gives up: then its claims are found by the reconciler.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rolloutpool_common.store import StoreFull, StoreUnavailable
from rolloutpool_worker.drain import Drain

__all__ = ["retry_store"]

_log = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0

T = TypeVar("T")


async def retry_store(drain: Drain, uid: str, call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns once the store answers; `call` must be harmless when it arrives twice."""
    pause = 0.2
    while True:
        try:
            return await call()
        except (StoreUnavailable, StoreFull) as error:
            if drain.begun:
                raise
            if pause < LONGEST_PAUSE:
                _log.warning("rollout %s waits for the store: %s", uid, error.message)
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)
