"""What is open and nowhere is found by counting, put back by a scan, and told; what moves on is left alone."""

import logging

import pytest
from tests.support.batches import batch_of, claim, finish, new_batch, result_of, submit, view_of

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Store
from rolloutpool_common.store.strays import AUDIT_SECONDS, Stray, Strays


class Clock:
    """Seconds that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def looks(audit: Strays, clock: Clock, count: int) -> list[list[Stray]]:
    """So many looks, each when it is time."""
    found = []
    for _ in range(count):
        clock.now += AUDIT_SECONDS
        found.append(await audit.look())
    return found


async def lose(store: Store, uid: str) -> None:
    """Takes a rollout out of all places in which it may wait."""
    redis, (batch_id, _, index) = store.outbox._redis, uid.rpartition("-")
    await redis.lrem(f"rp:batch:{batch_id}:outbox", 0, index)
    for place in ("published:default", "delayed", "suspects"):
        await redis.zrem(f"rp:{place}", uid)


async def test_it_takes_two_looks_and_no_more(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    audit = Strays(store.outbox._connection, clock=clock)
    uids = await submit(store, 5)
    batch_id = batch_of(uids[0])
    await store.outbox.reserve(Priority.DEFAULT, 2)
    await lose(store, uids[0])
    await lose(store, uids[4])
    caplog.set_level(logging.ERROR)
    lost = [Stray(batch_id, 0, "never claimed", 0), Stray(batch_id, 4, "never claimed", 0)]
    assert await looks(audit, clock, 3) == [[], lost, []]
    assert [uid in caplog.text for uid in uids] == [True, False, False, False, True]
    assert (await store.totals.read()).totals["strays"] == 2
    assert {ticket.index for ticket in await store.outbox.reserve(Priority.DEFAULT, 9)} == {0, 2, 3, 4}


async def test_before_it_is_time_it_reads_nothing(store: Store) -> None:
    clock = Clock()
    audit = Strays(store.outbox._connection, clock=clock)
    (uid,) = await submit(store)
    await looks(audit, clock, 1)
    await lose(store, uid)
    clock.now += AUDIT_SECONDS - 1
    assert await audit.look() == []
    assert await looks(audit, clock, 2) == [[], [Stray(batch_of(uid), 0, "never claimed", 0)]]


async def test_an_outbox_that_stands_in_no_line_gets_its_turn_again(store: Store) -> None:
    clock = Clock()
    audit = Strays(store.outbox._connection, clock=clock)
    (uid,) = await submit(store)
    batch_id = batch_of(uid)
    await store.outbox._redis.delete("rp:runs:default")
    assert await looks(audit, clock, 2) == [[], [Stray(batch_id, -1, "queued", 0)]]
    assert len(await store.outbox.reserve(Priority.DEFAULT, 9)) == 1


async def test_a_group_that_waits_for_its_grade_is_no_stray(store: Store) -> None:
    clock = Clock()
    audit = Strays(store.outbox._connection, clock=clock)
    batch = new_batch(2, groups=["g", "g"], asks={"grading": True})
    await store.batches.submit(batch)
    held = await claim(store, f"{batch.batch_id}-0")
    await KeptRollouts(store).begin(held, result_of(held), seconds=600, group="g")
    assert await looks(audit, clock, 4) == [[], [], [], []]
    # And one that is lost beside it is found, though the held one may be counted twice.
    await lose(store, f"{batch.batch_id}-1")
    assert [one for found in await looks(audit, clock, 3) for one in found] == [
        Stray(batch.batch_id, 1, "never claimed", 0)
    ]


async def test_what_has_ended_is_looked_at_no_more(store: Store) -> None:
    (uid,) = await submit(store)
    assert await store.outbox._redis.scard("rp:open_batches") == 1
    await finish(store, uid)
    assert await store.outbox._redis.scard("rp:open_batches") == 0
    view = await view_of(store, uid)
    assert view.status is RolloutStatus.COMPLETED
