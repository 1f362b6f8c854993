"""The asyncio client: the same surface as the blocking one, and nothing that blocks."""

import asyncio
import inspect
import re
from typing import Any

import pytest
from tests.support.api_documents import BATCH, accepted, page, status
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.client.aio_group import AsyncTrainableGroup
from rolloutpool_trainer.client.aio_stream import AsyncRolloutStream
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_batch import Batch
from rolloutpool_trainer.client.sync_group import TrainableGroup
from rolloutpool_trainer.client.sync_stream import RolloutStream

NOT_AWAITED = {"batch", "load_state_dict", "state_dict"}
"""What asks the pool for nothing."""


def surface(kind: type[Any]) -> dict[str, list[tuple[str, Any, str]]]:
    """Public methods with names, defaults and annotations of their parameters; names of classes have no `Async`."""

    def named(annotation: Any) -> str:
        return re.sub(r"[\w.]+\.(?:Async)?(\w+)", r"\1", inspect.formatannotation(annotation))

    return {
        name: [(p.name, p.default, named(p.annotation)) for p in inspect.signature(value).parameters.values()]
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (RolloutClient, AsyncRolloutClient),
        (Batch, AsyncBatch),
        (RolloutStream, AsyncRolloutStream),
        (TrainableGroup, AsyncTrainableGroup),
    ],
)
def test_both_clients_have_one_surface(blocking: type[Any], awaited: type[Any]) -> None:
    assert surface(blocking) == surface(awaited)
    for name in surface(awaited):
        method = inspect.unwrap(getattr(awaited, name))
        if name not in NOT_AWAITED:
            assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name


async def test_submit_and_read(pool: StubPool) -> None:
    pool.on("POST", "/v1/batches", Answer(drop=True), Answer(202, accepted()))
    pool.on("GET", f"/v1/batches/{BATCH}/results", Answer(body=page(0)), Answer(body=page(0, 1, complete=True)))
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status(state="running")), Answer(body=status()))
    pool.on("DELETE", f"/v1/batches/{BATCH}", Answer(body={}))
    async with AsyncRolloutClient(pool.url, timeout=5.0) as client:
        batch = await client.submit([{"messages": [{"role": "user", "content": "hi"}]}])
        assert [result.cursor async for result in batch.results()] == ["0-0", "1-0"]
        assert (await batch.wait()).progress == 1.0
        await batch.cancel()
    keys = {request.headers["Idempotency-Key"] for request in pool.requests if request.method == "POST"}
    assert len(keys) == 1


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
