"""A result of a batch with delivery is due until it is delivered or dead, and leased to one pusher at a time."""

import pytest
from redis.asyncio import Redis
from tests.integration.store.test_retention import check_nothing_is_left, run_some_batches
from tests.support.batches import OWNER, batch_of, beat, claim, finish, result_of, status_of, submit, uids_of
from tests.support.served_clock import ServedClock
from tests.unit.common.store.test_leases import LEASE, leased, left_s

from rolloutpool_common.capabilities.webhooks import pushes
from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.capabilities.webhooks.stored import Webhooks
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.store import BatchDeleted, Store, deletion

TO = Delivery(callback_url="http://127.0.0.1:9/", secret="long enough")


async def due(store: Store, count: int, url: str = TO.callback_url, owner: str = OWNER) -> list[str]:
    """The uids of a batch with this webhook, whose rollouts have all ended."""
    uids = await submit(store, count, asks={"webhooks": Delivery(callback_url=url, secret="long enough")}, owner=owner)
    for uid in uids:
        await finish(store, uid)
    return uids


async def delivery_counts(store: Store, uid: str) -> dict[str, int]:
    status = await status_of(store, uid)
    return {state: n for state, n in status.delivery.items() if n}


async def test_a_deletion_that_was_broken_off_is_completed_although_pushes_wait(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uid,) = await submit(store, asks={"webhooks": TO})
    await finish(store, uid)

    async def die(*_: object) -> None:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(deletion, "_delete_rollouts", die)
        with pytest.raises(KeyError):
            await store.batches.delete(batch_of(uid))
    assert (await store.reconciliation.run_once()).deleted == 1
    assert await store.rollouts.view(uid, OWNER) is None


async def test_a_deleted_batch_leaves_nothing_of_its_pushes(store: Store, raw: Redis) -> None:
    async def push(store: Store) -> None:
        pushes = Pushes(store)
        for n, one in enumerate(await pushes.take(200, lease_s=60)):
            await pushes.settle(one, ("delivered", "dead", "retry")[n % 3], retry_in_s=60)

    batches = await run_some_batches(store, 0.001, {"webhooks": TO}, push)
    await check_nothing_is_left(store, raw, batches, {"rp:push:dead"})


async def test_a_push_that_a_cancel_has_stopped_does_not_come_back(store: Store) -> None:
    (uid,) = await due(store, 1)
    (push,) = await Pushes(store).take(9, lease_s=60)
    await store.rollouts.cancel(uid)
    await Pushes(store).settle(push, "retry")
    assert await Pushes(store).take(9, lease_s=0) == []


async def test_no_receiver_gets_more_than_its_share(store: Store) -> None:
    many = await due(store, 6, "https://Hangs.example:8443/A?b=c")
    few = await due(store, 2, "http://good.example")
    hangs, good = f"{OWNER} https://hangs.example:8443/A", f"{OWNER} http://good.example"
    taken = await Pushes(store).take(9, lease_s=60, share=4, busy={hangs: 1})
    assert [push.receiver for push in taken] == [hangs] * 3 + [good] * 2
    assert {push.uid for push in taken} <= {*many, *few}
    assert await Pushes(store).take(9, lease_s=60, share=4, busy={hangs: 4}) == []
    assert len(await Pushes(store).take(9, lease_s=60)) == 3


async def test_another_path_and_another_owner_of_a_host_have_shares_of_their_own(store: Store) -> None:
    await due(store, 4, "http://one.example/hangs")
    path = await due(store, 1, "http://one.example/good")
    owner = await due(store, 1, "http://one.example/hangs", owner="other")
    taken = await Pushes(store).take(9, lease_s=60, share=2, busy={f"{OWNER} http://one.example/hangs": 2})
    assert [push.uid for push in taken] == [*path, *owner]


async def test_an_owner_with_many_receivers_leaves_room_for_others(store: Store) -> None:
    for path in range(4):
        await due(store, 2, f"http://one.example/{path}")
    other = await due(store, 2, "http://two.example/", owner="other")
    taken = await Pushes(store).take(99, lease_s=60, share=2, owner_share=3)
    assert [push.uid for push in taken][3:] == other
    assert len(taken) == 5


async def test_a_receiver_that_is_down_is_left_alone_then_tried_by_one_push_and_then_gets_all(
    store: Store, raw: Redis
) -> None:
    uids = await due(store, 5, "http://down.example/")
    other = await due(store, 1, "http://up.example/")
    first = await Pushes(store).take(3, lease_s=60)
    for push in first:
        await Pushes(store).settle(push, "down", retry_in_s=600)
    # What was not under way waits with the others.
    assert [push.uid for push in await Pushes(store).take(9, lease_s=60)] == other

    async def later() -> None:
        (down,) = await raw.keys("rp:push:down:*")
        assert await raw.hget(down, "failures") == "1", "three that failed together are one failure"
        await raw.hset(down, "next_ms", 1)
        for uid in uids:
            await raw.zadd("rp:push:due", {uid: 1})

    await later()
    (probe,) = await Pushes(store).take(9, lease_s=60, share=8)
    assert (probe.failures, probe.receiver) == (1, first[0].receiver)
    assert await Pushes(store).take(9, lease_s=60, share=8, busy={probe.receiver: 1}) == []
    await Pushes(store).settle(probe, "delivered")
    assert len(await Pushes(store).take(9, lease_s=60, share=8)) == 4


async def test_many_pushes_for_a_receiver_that_is_down_hide_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "LOOK_AT", 3)
    await due(store, 20, "http://down.example/")
    (first,) = await Pushes(store).take(1, lease_s=60)
    await Pushes(store).settle(first, "down", retry_in_s=600)
    (good,) = await due(store, 1, "http://good.example/")
    assert [push.uid for push in await Pushes(store).take(9, lease_s=60)] == [good]


async def test_all_pushes_of_a_batch_can_be_made_due_again(store: Store) -> None:
    uids = await due(store, 4, "http://down.example/")
    one, two, three, _ = await Pushes(store).take(4, lease_s=60)
    await Pushes(store).settle(one, "delivered")
    await Pushes(store).settle(two, "dead")
    await Pushes(store).settle(three, "down", retry_in_s=600)
    batch_id = batch_of(uids[0])
    assert two.uid in (await Webhooks().dead_letters(store.connection, 100))["pushes"]
    assert await Pushes(store).retry(batch_id, 4) == 3
    assert await Pushes(store).retry(batch_id, 4) == 3
    assert two.uid not in (await Webhooks().dead_letters(store.connection, 100))["pushes"]
    assert await delivery_counts(store, two.uid) == {"delivered": 1, "pending": 3}
    assert {push.uid for push in await Pushes(store).take(9, lease_s=60)} == {*uids} - {one.uid}


async def test_a_dead_letter_is_a_push_that_is_given_up_now(store: Store) -> None:
    """Those that were delivered at last, or deleted with their batch, were told of as given up."""

    async def letters() -> list[str]:
        return (await Webhooks().dead_letters(store.connection, 100))["pushes"]

    uids = await due(store, 2, "http://down.example/")
    batch_id = batch_of(uids[0])
    for _ in range(2):
        for push in await Pushes(store).take(2, lease_s=60):
            await Pushes(store).settle(push, "dead")
        assert sorted(await letters()) == sorted(uids)
        await Pushes(store).retry(batch_id, 2)
    one, two = await Pushes(store).take(2, lease_s=60)
    await Pushes(store).settle(one, "delivered")
    assert await letters() == []
    await Pushes(store).settle(two, "dead")
    assert await letters() == [two.uid]
    await store.batches.delete(batch_id)
    assert await letters() == []


async def test_what_a_worker_of_0_2_has_given_up_is_a_dead_letter(store: Store, raw: Redis) -> None:
    """It does not note which of a batch's pushes these are."""
    uids = await due(store, 2, "http://down.example/")
    batch_id = batch_of(uids[0])
    for push in await Pushes(store).take(2, lease_s=60):
        await Pushes(store).settle(push, "dead")
    await raw.delete(f"rp:batch:{batch_id}:undelivered")
    assert set((await Webhooks().dead_letters(store.connection, 100))["pushes"]) == set(uids)


async def test_letters_that_are_over_hide_none_before_them(store: Store, raw: Redis) -> None:
    """Where the newest hundred had been delivered at last, `dead-letters` said that there were none."""
    uids = await due(store, 3, "http://down.example/")
    for push in await Pushes(store).take(3, lease_s=60):
        await Pushes(store).settle(push, "dead")
    await raw.lpush("rp:push:dead", *(f"gone-{i}" for i in range(1200)))
    for limit in (2, 100):
        letters = (await Webhooks().dead_letters(store.connection, limit))["pushes"]
        assert len(letters) == min(limit, 3)
        assert set(letters) <= set(uids)


async def test_no_page_of_a_batch_that_is_being_deleted_passes_for_the_whole(store: Store, raw: Redis) -> None:
    uids = await due(store, 3, "http://up.example/")
    batch_id = batch_of(uids[0])
    last = (await store.batches.results(batch_id, "0", 2)).next_cursor
    # Its deletion has begun, and has not come to the last rollout yet.
    await raw.hset(f"rp:batch:{batch_id}", "deleting", 1)
    for cursor in ("0", last):
        with pytest.raises(BatchDeleted):
            await store.batches.results(batch_id, cursor, 2)


async def test_a_batch_is_kept_once_for_its_pushes_and_the_repeated_call_says_so_too(store: Store, raw: Redis) -> None:
    (uid,) = await due(store, 1, "http://up.example/")
    batch_id = batch_of(uid)
    await raw.zadd("rp:ended", {batch_id: 1})
    assert await Webhooks().holds(store.connection, batch_id)
    # The same call again, because its answer was lost: "not kept" would delete what waits.
    assert await Webhooks().holds(store.connection, batch_id)
    # That day is over.
    await raw.zadd("rp:ended", {batch_id: 1})
    assert not await Webhooks().holds(store.connection, batch_id)
    await raw.zadd("rp:ended", {batch_id: 4e12})
    (push,) = await Pushes(store).take(9, lease_s=60)
    await Pushes(store).settle(push, "delivered")
    # The last push lets it go.
    assert 0 < (await raw.zscore("rp:ended", batch_id) or 0) < 4e12


async def test_a_worker_is_told_to_stop_and_only_other_ends_lose_their_push(store: Store) -> None:
    done, running, waiting = await submit(store, 3, asks={"webhooks": TO})
    await finish(store, done)
    held = await claim(store, running)
    assert await store.batches.cancel(batch_of(done)) == 2
    assert {push.uid for push in await Pushes(store).take(10, lease_s=10)} == {running, waiting}
    assert (await beat(store, "w1", running=1, tokenizers={}))[1] == [held.token]
    assert await delivery_counts(store, done) == {"pending": 2, "stopped": 1}


async def test_an_accepted_push_is_a_read(store: Store) -> None:
    reconciler = ServedClock(store)
    await reconciler.tick()
    batch = await leased(store, asks={"webhooks": TO})
    held = await claim(store, uids_of(batch)[0])
    await store.rollouts.finish(held, result_of(held))
    await reconciler.seconds(20)
    (push,) = await Pushes(store).take(10, lease_s=5.0)
    await Pushes(store).settle(push, "retry")
    assert await left_s(store, batch) < 11
    await Pushes(store).settle(push, "delivered")
    assert await left_s(store, batch) == LEASE
