"""A worker is known from its announcement until it leaves, with what it last said of itself."""

from tests.support.batches import announce, claim, submit

from rolloutpool_common.store import Store


async def test_the_order_to_stop_comes_with_the_next_beat(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    assert await store.workers.tokens("w") == {uid: held.token}
    await other.rollouts.cancel(uid)
    assert (await store.workers.beat("w", running=1, tokenizers={}))[1] == [held.token]
    assert await store.workers.claims("w") == []


async def test_a_dead_worker_is_not_forgotten_while_it_has_claims(store: Store) -> None:
    (uid,) = await submit(store)
    await announce(store, "w")
    held = await claim(store, uid, "w")
    await store.workers.condemn("w")
    await store.workers.deregister("w")
    assert [worker.worker_id for worker in await store.workers.known()] == ["w"]
    await store.rollouts.release(held, clean=True)
    await store.workers.deregister("w")
    assert await store.workers.known() == []


async def test_one_that_has_beaten_since_the_look_is_not_declared_dead(store: Store) -> None:
    await announce(store, "w")
    (beat,) = [b"%.0f" % at for _, at in await store.workers._redis.zrange("rp:workers", 0, -1, withscores=True)]
    await store.workers._redis.zadd("rp:workers", {"w": float(beat) + 1})
    assert not await store.workers.condemn("w", beat)
    assert await store.workers.condemn("w", b"%.0f" % (float(beat) + 1))
