"""The driver gives results in the order of the request, and runs again what the infrastructure lost."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.adapters.driver import PoolDriver, conversation
from rolloutpool_trainer.errors import PoolUnavailable

ITEMS = [{"messages": conversation(text)} for text in ("one", "two", "three")]


def test_a_framework_that_blocks(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, {}, {}])
    assert len(driver.run_blocking(ITEMS)) == 3


async def test_a_framework_that_blocks_its_own_loop(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, {}, {}])
    assert len(driver.run_blocking(ITEMS)) == 3


async def test_a_request_that_is_given_up_cancels_its_batch(pool: StubPool, driver: PoolDriver) -> None:
    name = "b" + "0" * 32
    running = {"items": [], "next_cursor": "0", "complete": False}
    pool.on("POST", "/v1/batches", Answer(202, {"batch_id": name, "total": 3, "rollouts": ["a", "b", "c"]}))
    pool.on("GET", f"/v1/batches/{name}/results", Answer(body=running))
    pool.on("DELETE", f"/v1/batches/{name}", Answer(body={}))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.run(ITEMS), 0.3)
    assert pool.requests[-1].method == "DELETE"


async def test_a_pool_that_is_away_is_an_error() -> None:
    driver = PoolDriver("http://127.0.0.1:1", timeout=0.0)
    with pytest.raises(PoolUnavailable):
        await driver.run(ITEMS)
