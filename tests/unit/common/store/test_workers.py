"""A worker is known from its announcement until it leaves, with what it last said of itself."""

from tests.support.batches import announce, claim, submit

from rolloutpool_common.store import Store


async def test_beats_update_what_was_announced(store: Store, other: Store) -> None:
    await announce(store, "w", slots=8)
    assert (await store.workers.beat("w", running=3, tokenizers={"t": {"sha": "x"}}))[:2] == (True, [])
    (worker,) = await other.workers.known()
    assert (worker.worker_id, worker.slots, worker.running, worker.tokenizers) == ("w", 8, 3, {"t": {"sha": "x"}})


async def test_a_worker_that_left_is_not_known_and_its_beat_says_so(store: Store) -> None:
    await announce(store, "w")
    await store.workers.leave("w")
    assert await store.workers.known() == []
    assert (await store.workers.beat("w", running=0, tokenizers={}))[0] is False


async def test_the_order_to_stop_comes_with_the_next_beat(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    assert await store.workers.tokens("w") == {uid: held.token}
    await other.rollouts.cancel(uid)
    assert (await store.workers.beat("w", running=1, tokenizers={}))[1] == [held.token]
    assert await store.workers.claims("w") == []
