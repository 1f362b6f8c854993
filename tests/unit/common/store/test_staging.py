"""A few small rollouts go with their commit, others are staged before; what is stored is the same."""

from typing import Any

import pytest
from tests.support.batches import OWNER, new_batch

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.store import NewBatch, Store, StoreUnavailable, batches, staging
from rolloutpool_common.store.staging import DIRECT_BYTES, DIRECT_ROLLOUTS


def some(count: int, **fields: Any) -> NewBatch:
    return new_batch(
        [{"rollout_id": f"r{n}", **fields} for n in range(count)],
        groups=["a", None] * (count // 2) + ["b"] * (count % 2),
        deadline_s=60,
        group_policy=GroupPolicy(min_usable=1),
    )


async def stored(store: Store, batch: NewBatch) -> dict[str, Any]:
    redis = store.connection.redis
    found = {}
    async for key in redis.scan_iter(f"rp:*{batch.batch_id}*"):
        name = key.decode().replace(batch.batch_id, "B")
        kind = (await redis.type(key)).decode()
        if kind == "hash":
            found[name] = await redis.hgetall(key)
        else:
            found[name] = [one.decode().replace(batch.batch_id, "B") for one in await redis.lrange(key, 0, -1)]
    for fields in (found["rp:batch:B"], found["rp:batch:B:deadlines"]):
        # Times differ, and names of the batch itself.
        for name in fields:
            if name in (b"created_ms", b"run") or name.isdigit():
                fields[name] = b"..."
    return found


async def test_both_ways_store_the_same(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, staged = some(DIRECT_ROLLOUTS), some(DIRECT_ROLLOUTS)
    assert await staging.stage(store.connection.redis, store.batches._secrets, direct, {}) != []
    await store.batches.submit(direct)
    monkeypatch.setattr(staging, "DIRECT_ROLLOUTS", 0)
    await other.batches.submit(staged)
    assert await stored(store, direct) == await stored(store, staged)
    assert len(await store.outbox.reserve(Priority.DEFAULT, 99)) == 2 * DIRECT_ROLLOUTS
    # The later of the two has the names now.
    assert await store.rollouts.find("r0", OWNER) == f"{staged.batch_id}-0"


@pytest.mark.parametrize(
    "batch", [some(DIRECT_ROLLOUTS + 1), some(1, metadata={"long": "x" * DIRECT_BYTES})], ids=["many", "large"]
)
async def test_many_or_large_ones_are_staged(store: Store, batch: NewBatch) -> None:
    redis = store.connection.redis
    assert await staging.stage(redis, store.batches._secrets, batch, {}) == []
    names = {key.decode().rsplit(":", 1)[1] async for key in redis.scan_iter("rp:stage:*")}
    assert names == {"items", "names", "groups", "deadlines", "group_counts"}
    assert (await store.batches.submit(batch)).created
    assert [key async for key in redis.scan_iter("rp:stage:*")] == []


async def test_a_refused_one_leaves_nothing(store: Store) -> None:
    await store.batches.submit(new_batch(key="k"))
    refused = new_batch([{"rollout_id": "late"}], key="k")
    assert not (await store.batches.submit(refused)).created
    assert await store.rollouts.find("late", OWNER) is None
    assert [key async for key in store.connection.redis.scan_iter(f"rp:*{refused.batch_id}*")] == []


async def test_what_redis_has_lost_before_the_commit_is_staged_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts without an entry were accepted, and their batch could never end, be cancelled or be deleted."""
    batch, redis, staged = some(DIRECT_ROLLOUTS + 1), store.connection.redis, []

    async def stage(*given: Any) -> list[Any]:
        carried = await staging.stage(*given)
        staged.append(batch.batch_id)
        if len(staged) == 1:
            await redis.hdel(f"rp:stage:{batch.batch_id}:items", DIRECT_ROLLOUTS)
        if len(staged) == 2:
            await redis.unlink(*[key async for key in redis.scan_iter("rp:stage:*")])
        return carried

    monkeypatch.setattr(batches, "stage", stage)
    assert (await store.batches.submit(batch)).created
    assert len(staged) == 3
    assert await store.batches.cancel(batch.batch_id) == len(batch.rollouts)


async def test_a_redis_that_loses_it_each_time_is_not_asked_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that evicts keys with a time to live: staged keys are the first of them."""
    batch, redis, staged = some(DIRECT_ROLLOUTS + 1), store.connection.redis, 0

    async def stage(*given: Any) -> list[Any]:
        nonlocal staged
        staged += 1
        assert staged < 20
        await staging.stage(*given)
        await redis.unlink(f"rp:stage:{batch.batch_id}:items")
        return []

    monkeypatch.setattr(batches, "stage", stage)
    with pytest.raises(StoreUnavailable, match="noeviction"):
        await store.batches.submit(batch)
    assert await store.batches.status(batch.batch_id, OWNER) is None
