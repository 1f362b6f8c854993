"""A batch is cancelled in few calls, counted once, with the same results as its rollouts one by one."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.support.batches import claim, new_batch, status_of, uids_of

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store, StoreUnavailable
from rolloutpool_common.store import cancellation as module
from rolloutpool_common.store.scripting import Scripts


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that are run, by name."""
    ran = []
    run = Scripts.run

    def noted(self: Scripts, name: str, args: tuple[Any, ...]) -> Any:
        ran.append(name)
        return run(self, name, args)

    monkeypatch.setattr(Scripts, "run", noted)
    return ran


async def test_many_rollouts_take_few_calls(store: Store, scripts: list[str]) -> None:
    batch = new_batch(4 * module.AT_ONCE)
    await store.batches.submit(batch)
    scripts.clear()
    assert await store.batches.cancel(batch.batch_id) == 4 * module.AT_ONCE
    # The mark that it has begun, then two for each part.
    assert len(scripts) == 1 + 2 * 4
    assert (await store.totals.read()).open == 0


async def test_what_another_process_ends_meanwhile_is_counted(store: Store, other: Store) -> None:
    batch = new_batch(200)
    await store.batches.submit(batch)
    counted, _ = await asyncio.gather(store.batches.cancel(batch.batch_id), other.batches.cancel(batch.batch_id))
    assert counted == 200
    status = await status_of(store, batch.batch_id)
    assert status.counts[RolloutStatus.CANCELLED] == 200


async def test_the_results_are_those_of_single_cancels(store: Store) -> None:
    own = [{"rollout_id": f"r{i}", "metadata": {"own": i}, "labels": {"l": str(i)}} for i in range(2)]
    batch = new_batch(own, shared={"metadata": {"all": 1}}, groups=["g", None])
    await store.batches.submit(batch)
    first, second = uids_of(batch)
    await claim(store, first)
    twin = new_batch(own, shared={"metadata": {"all": 1}}, groups=["g", None])
    await store.batches.submit(twin)
    await claim(store, uids_of(twin)[0])
    assert await store.batches.cancel(batch.batch_id) == 2
    for uid, single in zip((first, second), uids_of(twin), strict=True):
        await store.rollouts.cancel(single)
        together, alone = await store.rollouts.result(uid), await store.rollouts.result(single)
        assert together is not None
        assert alone is not None
        assert orjson.loads(together.replace(batch.batch_id.encode(), twin.batch_id.encode())) == orjson.loads(alone)


async def test_only_an_old_cancellation_counts_as_interrupted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)

    async def dies(*_: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as dying:
        dying.setattr(module, "_cancel_some", dies)
        with pytest.raises(StoreUnavailable):
            await store.batches.cancel(batch.batch_id)
    assert await store.batches.interrupted_cancellations() == []
    monkeypatch.setattr(module, "INTERRUPTED_AFTER_MS", 0)
    assert await store.batches.interrupted_cancellations() == [batch.batch_id]
    assert await store.batches.cancel(batch.batch_id) == 3
    assert await store.batches.interrupted_cancellations() == []


async def test_a_cancelled_batch_makes_no_tickets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)
    seen = []
    cancel_some = module._cancel_some

    async def look_first(*given: Any) -> None:
        seen.append(await store.outbox.reserve(Priority.DEFAULT, 10))
        await cancel_some(*given)

    monkeypatch.setattr(module, "_cancel_some", look_first)
    assert await store.batches.cancel(batch.batch_id) == 3
    assert seen == [[]]
