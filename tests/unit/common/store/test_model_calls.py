"""What a dead worker's claim says about the turn that it was at."""

from typing import Any

import pytest
from tests.support.batches import NOWHERE, claim, submit

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, Store


async def found_dead(store: Store, held: Claim) -> Claim:
    """The next claim, after its worker has died and Redis has been told without knowing more."""
    assert await store.rollouts.abandon(held.uid, held.token, WorkerRole.SHARED)
    return await claim(store, held.uid, "next")


async def test_a_claim_that_redis_forgot_is_made_again_and_counts_as_called(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    await store.connection.redis.delete(f"rp:rollout:{uid}")
    await store.model_calls.note(held)
    assert not (await found_dead(store, held)).clean


async def promised(store: Store, **own: Any) -> str:
    """A rollout with these fields of its own, in a batch whose trainer has promised that it may be asked twice."""
    (uid,) = await submit(store, [own])
    await store.connection.redis.sadd(f"rp:batch:{uid.rpartition('-')[0]}:idempotent", NOWHERE)
    return uid


async def test_a_claim_notes_the_first_call_where_its_turn_may_be_asked_twice(store: Store) -> None:
    uid = await promised(store)
    held = await store.rollouts.claim(uid, "w", token="t", trainer=NOWHERE)
    assert isinstance(held, Claim)
    assert held.called
    again = await store.rollouts.claim(uid, "w", token="t", trainer=NOWHERE)
    assert isinstance(again, Claim)
    assert again.called
    following = await found_dead(store, held)
    assert not following.clean
    assert not following.called
    assert await store.model_calls.is_idempotent(following)


async def test_a_trainer_that_promises_nothing_is_never_noted_with_the_claim(store: Store) -> None:
    """100 deaths between claim and call: no turn is in doubt."""
    for uid in await submit(store, 100):
        held = await store.rollouts.claim(uid, "w", trainer=NOWHERE)
        assert isinstance(held, Claim)
        assert not held.called
        assert (await found_dead(store, held)).clean


@pytest.mark.parametrize(
    "own",
    [{"server_url": "http://127.0.0.1:8"}, {"environment": {"name": "e"}}, {"tokenizer_name": "a"}, {"agent": "own"}],
    ids=lambda own: next(iter(own)),
)
async def test_a_rollout_with_fields_of_its_own_that_matter_is_not_noted(store: Store, own: dict[str, Any]) -> None:
    uid = await promised(store, **own)
    assert (await store.connection.script("claim", *uid.rsplit("-", 1), "w", "shared", "t", NOWHERE))[-1] == 0


async def test_a_later_attempt_is_not_noted(store: Store) -> None:
    uid = await promised(store)
    await store.rollouts.release(await claim(store, uid, "w"), clean=True)
    held = await store.rollouts.claim(uid, "w", trainer=NOWHERE)
    assert isinstance(held, Claim)
    assert not held.called
