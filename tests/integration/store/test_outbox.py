"""Batches take turns filling a bounded window; what was published and lost comes back, once."""

import asyncio
from collections import Counter

import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, announce, claim, new_batch, result_of, submit
from tests.support.waiting import until

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import ClaimRefused, Store, SubmitLimits, Ticket, TooManyOpen
from rolloutpool_common.store.outbox import PER_WORKER


async def take(store: Store, limit: int = 5000, priority: Priority = Priority.DEFAULT) -> list[Ticket]:
    return await store.outbox.reserve(priority, limit)


async def test_no_more_than_the_window_is_published_and_claims_make_room(store: Store) -> None:
    uids = await submit(store, PER_WORKER + 10)
    first = await take(store)
    assert len(first) == PER_WORKER
    assert await take(store) == []
    assert (await store.outbox.queue_depths())[Priority.DEFAULT] == Queue(outbox=10, published=PER_WORKER)
    claimed = [await claim(store, uid) for uid in uids[:3]]
    assert claimed[0].more_waiting
    assert [ticket.index for ticket in await take(store)] == [PER_WORKER, PER_WORKER + 1, PER_WORKER + 2]
    # Cancelling what is published makes room too.
    for uid in uids[3:10]:
        await store.rollouts.cancel(uid)
    assert len(await take(store)) == 7
    assert not (await claim(store, uids[20])).more_waiting


async def test_ten_do_not_wait_behind_ten_thousand(store: Store) -> None:
    large = new_batch(10_000)
    await store.batches.submit(large)
    small = new_batch(10, groups=["eval"] * 10)
    await store.batches.submit(small)
    tickets = await take(store, 20)
    assert [ticket.index for ticket in tickets if ticket.batch_id == small.batch_id] == list(range(10))
    assert [ticket.index for ticket in tickets if ticket.batch_id == large.batch_id] == list(range(10))
    assert {ticket.group for ticket in tickets if ticket.batch_id == small.batch_id} == {"eval"}


async def test_a_late_batch_gets_the_window_s_next_places(store: Store) -> None:
    uids = await submit(store, 3000)
    await take(store)
    late = new_batch(5)
    await store.batches.submit(late)
    for uid in uids[:10]:
        await claim(store, uid)
    assert [ticket.batch_id for ticket in await take(store)].count(late.batch_id) == 5


async def test_priority_classes_have_windows_of_their_own(store: Store) -> None:
    await submit(store, PER_WORKER + 1)
    await take(store)
    await submit(store, 2, priority=Priority.HIGH)
    assert await take(store, priority=Priority.LOW) == []
    assert len(await take(store, priority=Priority.HIGH)) == 2


async def test_two_publishers_never_take_the_same_ticket(store: Store, other: Store) -> None:
    await submit(store, 100)
    lots = await asyncio.gather(*((store if i % 2 else other).outbox.reserve(Priority.DEFAULT, 17) for i in range(8)))
    taken = [ticket.index for lot in lots for ticket in lot]
    assert sorted(taken) == list(range(100))


async def test_cancelled_rollouts_leave_the_outbox_without_taking_room(store: Store) -> None:
    uids = await submit(store, 10)
    for uid in uids[:6]:
        await store.rollouts.cancel(uid)
    assert [ticket.index for ticket in await take(store, 3)] == [6, 7, 8]


async def test_lost_tickets_come_back_and_only_those(store: Store) -> None:
    uids = await submit(store, 4)
    (old,) = await take(store, 1)
    between = await store.outbox.now_ms()
    while await store.outbox.now_ms() < between + 2:
        pass
    await take(store, 2)
    assert await store.outbox.lost(Priority.DEFAULT, between + 1) == 1
    assert await store.outbox.lost(Priority.DEFAULT, between + 1) == 0
    # In front, because it has waited longest.
    assert [ticket.index for ticket in await take(store, 2)] == [old.index, 3]
    await claim(store, uids[0])
    assert await store.outbox.lost(Priority.DEFAULT, await store.outbox.now_ms() + 1000) == 3


async def test_a_ticket_that_is_claimed_while_it_is_put_back_is_not_published_again(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    await take(store)
    assert await store.outbox.lost(Priority.DEFAULT, await store.outbox.now_ms() + 1000) == 1
    # The ticket was slow, not lost.
    await claim(store, uid)
    assert await take(store) == []
    assert await raw.exists("rp:published:default", "rp:runs:default") == 0


async def test_a_second_ticket_of_a_running_rollout_is_forgotten_when_it_arrives(store: Store, raw: Redis) -> None:
    (uid,) = await submit(store)
    await take(store)
    await store.outbox.lost(Priority.DEFAULT, await store.outbox.now_ms() + 1000)
    await take(store)
    first = await claim(store, uid, "w1")
    await raw.zadd("rp:published:default", {uid: 1})
    assert await store.rollouts.claim(uid, "w2") is ClaimRefused.TAKEN
    assert await raw.zcard("rp:published:default") == 0
    # And nothing is lost by that: whoever gives the rollout back makes a new ticket.
    assert await store.rollouts.release(first, clean=True)
    assert len(await take(store)) == 1
    again = await claim(store, uid, "w2")
    await store.rollouts.finish(again, result_of(again))


async def test_each_live_worker_widens_the_window(store: Store) -> None:
    await submit(store, 3 * PER_WORKER)
    for name in ("w1", "w2"):
        await announce(store, name)
    assert len(await take(store)) == 2 * PER_WORKER


async def test_runs_share_by_weight_and_their_batches_follow_each_other(store: Store) -> None:
    heavy = [new_batch(60, run="train", weight=3) for _ in range(2)]
    light = new_batch(60, run="eval")
    for batch in (*heavy, light):
        await store.batches.submit(batch)
    shares = Counter(ticket.batch_id for ticket in await take(store, 40))
    assert shares == {heavy[0].batch_id: 30, light.batch_id: 10}
    rest = Counter(ticket.batch_id for ticket in await take(store, 80))
    # The first batch's other 30, then the second of the same run; never more of the run for having two batches.
    assert rest == {heavy[0].batch_id: 30, heavy[1].batch_id: 30, light.batch_id: 20}


async def test_weights_hold_however_few_places_come_free_at_a_time(store: Store, raw: Redis) -> None:
    heavy, light = new_batch(60, run="train", weight=3), new_batch(60, run="eval")
    for batch in (heavy, light):
        await store.batches.submit(batch)
    order = [ticket.batch_id for _ in range(40) for ticket in await take(store, 1)]
    assert order == [*[heavy.batch_id] * 3, light.batch_id] * 10
    shares = Counter([ticket.batch_id for _ in range(20) for ticket in await take(store, 2)])
    assert shares == {heavy.batch_id: 30, light.batch_id: 10}
    # In the middle of its turn a run may end, and another one begins with a turn of its own.
    await take(store, 1)
    await store.batches.cancel(heavy.batch_id)
    third = new_batch(20, run="other", weight=2)
    await store.batches.submit(third)
    order = [ticket.batch_id for _ in range(6) for ticket in await take(store, 1)]
    assert order == [light.batch_id, third.batch_id, third.batch_id] * 2
    # What is noted of a turn does not outlive it for long.
    await take(store, 1)
    await take(store, 1)
    assert await raw.ttl("rp:turn:default") > 0


async def test_a_delayed_rollout_waits_outside_the_outbox(store: Store) -> None:
    (uid,) = await submit(store)
    await take(store)
    claimed = await claim(store, uid)
    await store.rollouts.give_back(claimed, clean=True, counter="retries", delay_s=0.2)
    assert await take(store) == []
    view = await store.rollouts.view(uid, OWNER)
    assert view is not None
    assert view.status is RolloutStatus.QUEUED

    async def due() -> bool:
        return (await store.reconciliation.run_once()).resumed == 1

    await until(due)
    assert [ticket.index for ticket in await take(store)] == [0]
    assert (await claim(store, uid)).retries == 1


async def test_no_more_are_accepted_than_may_be_open(store: Store) -> None:
    first = new_batch(6)
    await store.batches.submit(first, SubmitLimits(max_open=10))
    with pytest.raises(TooManyOpen, match="6 of at most 10"):
        await store.batches.submit(new_batch(5), SubmitLimits(max_open=10))
    await store.batches.cancel(first.batch_id)
    assert (await store.batches.submit(new_batch(10), SubmitLimits(max_open=10))).created
    assert (await store.batches.capacity()).open_rollouts == 10
