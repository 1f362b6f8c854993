"""A result of a batch with delivery is due until it is delivered or dead, and leased to one pusher at a time."""

import pytest
from tests.support.batches import OWNER, claim, result_of, submit

from rolloutpool_common.protocol.batch import Delivery
from rolloutpool_common.store import Store
from rolloutpool_common.store.records import DuePush

TO = Delivery(callback_url="http://127.0.0.1:9/", secret="long enough")


@pytest.fixture
async def uid(store: Store) -> str:
    """A rollout that has ended and is to be pushed."""
    (ended,) = await submit(store, delivery=TO)
    claimed = await claim(store, ended)
    await store.rollouts.finish(claimed, result_of(claimed))
    return ended


async def test_a_leased_push_is_not_given_to_another(store: Store, other: Store, uid: str) -> None:
    assert await store.pushes.take(9, lease_s=60) == [DuePush(uid, 1)]
    assert await other.pushes.take(9, lease_s=60) == []


async def test_a_lease_that_ended_is_a_further_attempt(store: Store, other: Store, uid: str) -> None:
    await store.pushes.take(9, lease_s=0)
    assert await other.pushes.take(9, lease_s=0) == [DuePush(uid, 2)]


async def test_a_delivered_push_is_counted_and_never_due_again(store: Store, uid: str) -> None:
    await store.pushes.take(9, lease_s=60)
    await store.pushes.settle(uid, "delivered")
    assert await store.pushes.take(9, lease_s=0) == []
    status = await store.batches.status(uid.rpartition("-")[0], OWNER)
    assert status is not None
    assert {state: n for state, n in status.delivery.items() if n} == {"delivered": 1}


async def test_a_dead_push_is_listed(store: Store, uid: str) -> None:
    await store.pushes.take(9, lease_s=60)
    await store.pushes.settle(uid, "dead")
    assert uid in await store.pushes.dead()
