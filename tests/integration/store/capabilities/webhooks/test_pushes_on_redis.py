"""A result of a batch with delivery is due until it is delivered or dead, and leased to one pusher at a time."""

from typing import Any

import pytest
import redis.asyncio
from tests.integration.store.test_retention import check_nothing_is_left, run_some_batches
from tests.support.batches import OWNER, batch_of, finish, status_of, submit
from tests.support.pushes import due_push

from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.capabilities.webhooks.stored import Webhooks
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.store import Store, deletion

TO = Delivery(callback_url="http://127.0.0.1:9/", secret="long enough")


async def finished(store: Store, count: int) -> list[str]:
    uids = await submit(store, count, asks={"webhooks": TO})
    for uid in uids:
        await finish(store, uid)
    return uids


async def delivery_counts(store: Store, uid: str) -> dict[str, int]:
    status = await status_of(store, uid)
    return {state: n for state, n in status.delivery.items() if n}


async def test_nothing_is_due_without_delivery_or_before_the_end(store: Store) -> None:
    plain, *_ = await submit(store, 1)
    await finish(store, plain)
    await submit(store, 1, asks={"webhooks": TO})
    assert await Pushes(store).take(10, lease_s=1) == []


async def test_every_end_is_pushed_also_a_cancelled_one(store: Store) -> None:
    done, cancelled = await submit(store, 2, asks={"webhooks": TO})
    await finish(store, done)
    await store.rollouts.cancel(cancelled)
    assert {push.uid for push in await Pushes(store).take(10, lease_s=60)} == {done, cancelled}
    assert await delivery_counts(store, done) == {"pending": 2}
    assert await Pushes(store).target(batch_of(done)) == TO


async def test_a_retry_is_due_when_it_said(store: Store) -> None:
    (uid,) = await finished(store, 1)
    await Pushes(store).take(1, lease_s=60)
    await Pushes(store).settle(due_push(uid), "retry", retry_in_s=60)
    assert await Pushes(store).take(1, lease_s=60) == []
    await Pushes(store).settle(due_push(uid), "retry", retry_in_s=0)
    assert await Pushes(store).take(1, lease_s=60) == [due_push(uid, attempt=2)]
    assert await delivery_counts(store, uid) == {"pending": 1}


async def test_delivered_and_dead_are_final_and_counted_once(store: Store) -> None:
    delivered, dead = await finished(store, 2)
    await Pushes(store).take(2, lease_s=0)
    for _ in range(2):
        await Pushes(store).settle(due_push(delivered), "delivered")
        await Pushes(store).settle(due_push(dead), "dead")
    await Pushes(store).settle(due_push(delivered), "retry")
    assert await Pushes(store).take(2, lease_s=0) == []
    assert await delivery_counts(store, dead) == {"delivered": 1, "dead": 1}
    assert (await Webhooks().dead_letters(store.connection, 100))["pushes"] == [dead]
    # The result stays readable whatever became of its push.
    assert await store.rollouts.result(dead) is not None


async def test_cancel_after_the_end_stops_the_delivery_and_nothing_else(store: Store) -> None:
    first, leased, delivered = await finished(store, 1), await finished(store, 1), await finished(store, 1)
    await Pushes(store).settle(due_push(delivered[0]), "delivered")
    assert len(await Pushes(store).take(10, lease_s=60)) == 2
    for (uid,) in (first, leased, delivered):
        # The outcome stands, and a second cancel changes nothing.
        assert [await store.rollouts.cancel(uid) for _ in range(2)] == [RolloutStatus.COMPLETED] * 2
    assert [await delivery_counts(store, uid) for (uid,) in (first, leased, delivered)] == [
        {"stopped": 1},
        {"stopped": 1},
        {"delivered": 1},
    ]
    # What its worker says afterwards is of no interest any more.
    await Pushes(store).settle(due_push(first[0]), "retry", retry_in_s=0)
    await Pushes(store).settle(due_push(leased[0]), "delivered")
    assert await delivery_counts(store, leased[0]) == {"stopped": 1}
    assert (await store.totals.read()).totals["push:stopped"] == 2
    assert (await store.totals.read()).gauges["pushes_pending"] == 0


async def test_a_deletion_that_was_broken_off_is_completed_although_pushes_wait(
    store: Store, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uid,) = await submit(store, asks={"webhooks": Delivery(callback_url="http://127.0.0.1:9/", secret="long enough")})
    await finish(store, uid)

    async def die(*_: object) -> None:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(deletion, "_delete_rollouts", die)
        with pytest.raises(KeyError):
            await store.batches.delete(batch_of(uid))
    assert (await store.reconciliation.run_once()).deleted == 1
    assert await store.rollouts.view(uid, OWNER) is None


async def test_a_deleted_batch_leaves_nothing_of_its_pushes(store: Store, raw: Any) -> None:
    async def push(store: Store) -> None:
        pushes = Pushes(store)
        for n, one in enumerate(await pushes.take(200, lease_s=60)):
            await pushes.settle(one, ("delivered", "dead", "retry")[n % 3], retry_in_s=60)

    batches = await run_some_batches(store, 0.001, {"webhooks": TO}, push)
    await check_nothing_is_left(store, raw, batches, {"rp:push:dead"})
