"""What a rollout has to write is held over an outage, and given up only when the worker shuts down."""

import pytest

from rolloutpool_common.store import ClaimLost, StoreFull, StoreUnavailable
from rolloutpool_common.store.write_waits import WriteWaits
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import Drain


async def test_an_outage_is_outlasted() -> None:
    outages = [StoreUnavailable(), StoreFull()]

    async def write() -> str:
        if outages:
            raise outages.pop()
        return "written"

    waits = WriteWaits()
    assert await retry_store(Drain(), "b-0", write, waits=waits) == "written"
    assert outages == []
    assert waits.worker == 0 < waits.redis


@pytest.mark.parametrize(
    ("error", "shuts_down"), [(ClaimLost(), False), (ValueError(), False), (StoreUnavailable(), True)]
)
async def test_other_errors_pass_at_once_and_a_worker_that_shuts_down_gives_up(
    error: Exception, shuts_down: bool
) -> None:
    drain, calls = Drain(), 0

    async def write() -> None:
        nonlocal calls
        calls += 1
        if shuts_down:
            drain.begin()
        raise error

    with pytest.raises(type(error)):
        await retry_store(drain, "b-0", write)
    assert calls == 1
