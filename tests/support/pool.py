"""A pool without its API: it submits batches, publishes their tickets, and waits for results."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.support.batches import new_batch, uids_of
from tests.support.secrets import SECRETS
from tests.support.waiting import until

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store, StoreUnavailable


class Pool:
    """What the API does for a batch, as calls."""

    def __init__(self, redis_url: str) -> None:
        self.url = redis_url
        self.store = Store.open(redis_url, secrets=SECRETS)
        self.publisher = Publisher(self.store, redis_url)

    async def submit(self, rollouts: int | Sequence[dict[str, Any]] = 1, **options: Any) -> list[str]:
        """Submits and publishes; returns the uids."""
        batch = new_batch(rollouts, **options)
        await self.store.batches.submit(batch)
        await self.publisher.pump()
        return uids_of(batch)

    async def result(self, uid: str, seconds: float = 30.0) -> RolloutResult:
        """The rollout's result, once it has ended."""
        data = await until(lambda: self.store.rollouts.result(uid), seconds)
        return RolloutResult.model_validate_json(data)

    async def run(self, rollouts: int | Sequence[dict[str, Any]] = 1, **options: Any) -> list[RolloutResult]:
        """Submits, and waits for all results; in the order of submission."""
        return [await self.result(uid) for uid in await self.submit(rollouts, **options)]

    @contextlib.asynccontextmanager
    async def reconciled(self) -> AsyncIterator[None]:
        """Reconciles and publishes in the background, as an API process does."""
        watch = self.store.watch()

        async def work() -> None:
            while True:
                # On a busy machine an answer may be late. An API process goes on with its next round, too.
                with contextlib.suppress(StoreUnavailable):
                    await watch.look()
                    await self.store.reconciliation.run_once()
                    await self.publisher.recover()
                    await self.publisher.pump()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            failure = task.exception() if task.done() else None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await watch.close()
            assert failure is None, failure

    async def close(self) -> None:
        """Closes all connections."""
        self.publisher.close()
        await self.store.close()


@contextlib.asynccontextmanager
async def opened_pool(redis_url: str) -> AsyncIterator[Pool]:
    """A pool that is closed when the block ends."""
    pool = Pool(redis_url)
    try:
        yield pool
    finally:
        await pool.close()
