"""A result of a batch with delivery is due until it is delivered or dead, and leased to one pusher at a time."""

import pytest
from tests.support.batches import OWNER, claim, result_of, submit

from rolloutpool_common.protocol.batch import Delivery
from rolloutpool_common.store import Store, pushes
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
    assert await store.pushes.take(9, lease_s=60) == [DuePush(uid, 1, "127.0.0.1:9")]
    assert await other.pushes.take(9, lease_s=60) == []


async def test_a_lease_that_ended_is_a_further_attempt(store: Store, other: Store, uid: str) -> None:
    await store.pushes.take(9, lease_s=0)
    assert await other.pushes.take(9, lease_s=0) == [DuePush(uid, 2, "127.0.0.1:9")]


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


async def due(store: Store, url: str, count: int) -> list[str]:
    """The uids of a batch with this webhook, whose rollouts have all ended."""
    uids = await submit(store, count, delivery=Delivery(callback_url=url, secret="long enough"))
    for uid in uids:
        claimed = await claim(store, uid)
        await store.rollouts.finish(claimed, result_of(claimed))
    return uids


async def test_no_receiver_gets_more_than_its_share(store: Store) -> None:
    many = await due(store, "https://Hangs.example:8443/a?b=c", 6)
    few = await due(store, "http://good.example", 2)
    taken = await store.pushes.take(9, lease_s=60, share=4, busy={"hangs.example:8443": 1})
    assert [push.receiver for push in taken] == ["hangs.example:8443"] * 3 + ["good.example"] * 2
    assert {push.uid for push in taken} <= {*many, *few}
    assert await store.pushes.take(9, lease_s=60, share=4, busy={"hangs.example:8443": 4}) == []
    assert len(await store.pushes.take(9, lease_s=60)) == 3


async def test_a_long_row_of_pushes_for_one_receiver_hides_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "LOOK_AT", 3)
    busy = {"hangs.example": 1}
    hidden = await due(store, "http://hangs.example/", 7)
    (good,) = await due(store, "http://good.example/", 1)
    looks = [await store.pushes.take(9, lease_s=60, share=1, busy=busy) for _ in range(4)]
    assert [push.uid for look in looks for push in look] == [good]
    assert {push.uid for push in await store.pushes.take(2, lease_s=60)} <= {*hidden}
