"""What one process has learned of a trainer another one finds, until it expires."""

import redis.asyncio

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.trainers import KEEP_SECONDS


async def test_each_kind_is_found_by_another_process_until_it_expires(
    store: Store, other: Store, raw: redis.asyncio.Redis
) -> None:
    for kind in TrainerKind:
        if kind is not TrainerKind.UNKNOWN:
            await store.trainers.learn("name", kind)
            assert await other.trainers.kind("name") is kind
    assert await other.trainers.kind("another") is TrainerKind.UNKNOWN
    assert 0 < await raw.ttl(keys.trainer("name")) <= KEEP_SECONDS
    await raw.expire(keys.trainer("name"), 0)
    assert await other.trainers.kind("name") is TrainerKind.UNKNOWN


async def test_a_kind_of_a_later_version_is_none_that_is_known(store: Store, raw: redis.asyncio.Redis) -> None:
    await raw.set(keys.trainer("name"), "renders_backwards")
    assert await store.trainers.kind("name") is TrainerKind.UNKNOWN
