"""The batch that was submitted last, when an adapter submitted it and the test has no handle of it."""

import asyncio

from rolloutpool_common.protocol.batch_list import BatchSummary
from rolloutpool_trainer import LocalPool

SECONDS = 10.0


async def newest_when_complete(pool: LocalPool) -> BatchSummary:
    """Waits until the newest batch of a pool is complete, and returns it."""
    async with pool.async_client() as client, asyncio.timeout(SECONDS):
        while True:
            (newest, *_) = await client.batches(limit=1)
            if newest.state == "complete":
                return newest
            await asyncio.sleep(0.05)
