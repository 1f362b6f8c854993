"""The asyncio client beside other tasks; `test_contract` has what both clients do."""

import asyncio

import pytest
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.client.aio import AsyncRolloutClient


async def test_requests_run_side_by_side(pool: StubPool) -> None:
    pool.on("GET", "/health", Answer(body={"status": "healthy"}))
    async with AsyncRolloutClient(pool.url, timeout=5.0) as client:
        assert len(await asyncio.gather(*(client.health() for _ in range(20)))) == 20


async def test_a_cancelled_request_leaves_the_client_usable(pool: StubPool) -> None:
    pool.on("GET", "/tools", Answer(503, {"error": {"message": "no worker"}}, {"Retry-After": "5"}))
    pool.on("GET", "/health", Answer(body={"status": "healthy"}))
    async with AsyncRolloutClient(pool.url, timeout=30.0) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.tools(), 0.05)
        assert (await client.health()).status == "healthy"
