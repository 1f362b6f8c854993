"""What a dead worker's claim says about the turn that it was at."""

import pytest
from tests.support.batches import claim, submit

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, ClaimLost, Store


async def found_dead(store: Store, held: Claim) -> Claim:
    """The next claim, after its worker has died and Redis has been told without knowing more."""
    assert await store.rollouts.abandon(held.uid, held.token, WorkerRole.SHARED)
    return await claim(store, held.uid, "next")


async def test_a_worker_that_died_before_any_call_leaves_nothing_in_doubt(store: Store) -> None:
    (uid,) = await submit(store)
    assert (await found_dead(store, await claim(store, uid, "w"))).clean


async def test_a_worker_that_died_after_its_first_call_leaves_the_turn_in_doubt(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    await store.model_calls.note(held)
    assert not (await found_dead(store, held)).clean


async def test_a_doubt_stays_although_the_next_worker_died_before_its_call(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    await store.model_calls.note(held)
    second = await found_dead(store, held)
    assert not (await found_dead(store, second)).clean


async def test_what_the_worker_itself_knows_is_believed(store: Store) -> None:
    (uid,) = await submit(store)
    await store.rollouts.release(await claim(store, uid, "w"), clean=False)
    assert not (await claim(store, uid, "next")).clean


async def test_a_claim_that_redis_forgot_is_made_again_and_counts_as_called(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    await store._connection.redis.delete(f"rp:rollout:{uid}")
    await store.model_calls.note(held)
    assert not (await found_dead(store, held)).clean


async def test_a_claim_that_is_lost_may_not_call(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    await found_dead(store, held)
    with pytest.raises(ClaimLost):
        await store.model_calls.note(held)
