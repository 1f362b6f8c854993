"""What one worker has learned of a trainer another one knows, until it expires."""

from fakeredis import FakeAsyncRedis

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.trainers import KEEP_SECONDS


async def test_what_is_learned_is_known_elsewhere_and_expires(store: Store, other: Store) -> None:
    assert await store.trainers.kind("name") is TrainerKind.UNKNOWN
    await other.trainers.learn("name", TrainerKind.RERENDERS)
    assert await store.trainers.kind("name") is TrainerKind.RERENDERS
    await store.trainers.learn("name", TrainerKind.KEEPS_IDS)
    assert await other.trainers.kind("name") is TrainerKind.KEEPS_IDS
    assert await store.trainers.kind("another") is TrainerKind.UNKNOWN


async def test_it_expires(store: Store, raw: FakeAsyncRedis) -> None:
    await store.trainers.learn("name", TrainerKind.KEEPS_IDS)
    assert 0 < await raw.ttl(keys.trainer("name")) <= KEEP_SECONDS


async def test_a_kind_of_a_later_version_is_unknown(store: Store, raw: FakeAsyncRedis) -> None:
    await raw.set(keys.trainer("name"), "dreams")
    assert await store.trainers.kind("name") is TrainerKind.UNKNOWN
