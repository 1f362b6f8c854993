"""What owners hold is counted as long as they hold it, and who is let in where room is short."""

import time
from typing import Any

import pytest
from tests.support.batches import announce, claim, new_batch, result_of, uids_of
from tests.support.journals import turn_record

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.security.api_keys import KeyQuota
from rolloutpool_common.store import NewBatch, NoRoom, OverQuota, RefusalCause, Store, SubmitLimits, TooManyOpen
from rolloutpool_common.store.usage import ROOM_SECONDS, OwnerUsage, PoolUsage, Room, room_of

NEW = 64 * 1024
"""Reserved for each rollout of a new run."""
LIMIT = 10_000_000


def limits(memory: int = 0, **changes: Any) -> SubmitLimits:
    return SubmitLimits(**{"new_bytes": NEW, "memory_bytes": memory, "memory_limit_bytes": LIMIT, **changes})


async def usage(store: Store, owner: str) -> OwnerUsage:
    return (await store.usage.read()).owners.get(owner, OwnerUsage())


async def complete(store: Store, batch: NewBatch, journal_bytes: int = 100) -> None:
    """Ends all rollouts of a batch, each after a turn of about so many bytes."""
    for uid in uids_of(batch):
        held = await claim(store, uid)
        # A text that does not compress.
        said = "".join(chr(0x4E00 + (i * 7919) % 20_000) for i in range(journal_bytes // 3))
        await store.rollouts.journal(held, [turn_record(said)], turns=1)
        await store.rollouts.finish(held, result_of(held))


async def refused(store: Store, new: NewBatch, within: SubmitLimits) -> RefusalCause:
    with pytest.raises(OverQuota) as raised:
        await store.batches.submit(new, within)
    assert not await store.batches.total(new.batch_id, None)
    return raised.value.cause


async def test_what_is_accepted_is_counted_until_it_is_gone(store: Store) -> None:
    batch = new_batch(3, owner="ann", weight=4, run="r", attaches=True, attachment_bytes=1000)
    await store.batches.submit(batch, limits())
    size = (await usage(store, "ann")).bytes
    assert await usage(store, "ann") == OwnerUsage(open=3, weight=4, bytes=size, reserved=3 * (NEW + 1000))
    first, second, third = uids_of(batch)
    held = await claim(store, first)
    for _ in range(2):
        # The same call again, because its answer was lost.
        await store.rollouts.finish(held, result_of(held), attachments=b"x" * 500)
    after = await usage(store, "ann")
    assert (after.open, after.weight) == (2, 4)
    assert after.bytes > size + 500
    await store.rollouts.cancel(second)
    await store.batches.cancel(batch.batch_id)
    ended = await usage(store, "ann")
    assert (ended.open, ended.weight, ended.reserved) == (0, 0, 0)
    for _ in range(2):
        await store.batches.delete(batch.batch_id)
    assert (await store.usage.read()) == PoolUsage(0, OwnerUsage())
    assert third


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_stands_beside_a_result_that_was_kept_for_its_grader_is_counted_once(
    store: Store, cancelled: bool
) -> None:
    found = []
    for beside in (b"", b"x" * 5000):
        batch = new_batch(1, owner="ann", attaches=True, attachment_bytes=10_000, asks={"grading": True})
        await store.batches.submit(batch, limits())
        held = await claim(store, uids_of(batch)[0])
        await KeptRollouts(store).begin(held, result_of(held), seconds=60, group=None, attachments=beside)
        if cancelled:
            await store.batches.cancel(batch.batch_id)
        else:
            # The worker that has them still says them again.
            await store.rollouts.finish(held, result_of(held), attachments=beside)
        found.append((await usage(store, "ann")).bytes)
        await store.batches.delete(batch.batch_id)
    assert found[1] - found[0] == pytest.approx(0 if cancelled else 5000, abs=10)


async def test_what_an_older_release_has_ended_is_found_with_the_next_end_or_the_deletion(store: Store) -> None:
    batch = new_batch(3, owner="ann")
    await store.batches.submit(batch, limits())
    raw = store.usage._redis
    # As its scripts do: they count in the batch, and know nothing of usage.
    for index in (0, 1):
        await raw.hset(f"rp:rollout:{batch.batch_id}-{index}", mapping={"status": "completed"})
    await raw.hincrby(f"rp:batch:{batch.batch_id}", "ended", 2)
    await raw.decrby("rp:open", 2)
    assert (await usage(store, "ann")).open == 3
    await store.rollouts.cancel(uids_of(batch)[2])
    assert (await usage(store, "ann"))[:2] == (0, 0)
    late = new_batch(1, owner="ann")
    await store.batches.submit(late, limits())
    await raw.hset(f"rp:batch:{late.batch_id}", mapping={"ended": 1, "finished_ms": 1})
    await raw.decr("rp:open")
    for one in (batch, late):
        await store.batches.delete(one.batch_id)
    assert (await store.usage.read()) == PoolUsage(0, OwnerUsage())


async def test_what_an_older_release_has_deleted_or_ended_last_is_counted_anew(store: Store) -> None:
    kept = new_batch(3, owner="ann", run="r", weight=2, attaches=True, attachment_bytes=1000)
    ended, deleted = new_batch(2, owner="ann", run="r", weight=4), new_batch(2, owner="ann", run="other")
    for batch in (kept, ended, deleted):
        await store.batches.submit(batch, limits())
    held = await claim(store, uids_of(kept)[0])
    await store.rollouts.finish(held, result_of(held))
    raw, right = store.usage._redis, await store.usage.read()
    assert await store.usage.recount() == []
    assert await store.usage.read() == right
    # As its scripts do: they know nothing of usage.
    await raw.hset(f"rp:batch:{ended.batch_id}", mapping={"ended": 2, "finished_ms": 1})
    await raw.delete(f"rp:batch:{deleted.batch_id}")
    await raw.zrem("rp:batches:ann", deleted.batch_id)
    assert (await usage(store, "ann"))[:2] == (6, 7)
    for wrong in (["ann"], []):
        assert await store.usage.recount() == wrong
        each = int(await raw.hget("rp:reserve:ann/r", "bytes"))
        now = await usage(store, "ann")
        assert (now.open, now.weight, now.reserved) == (2, 2, 2 * (each + 1000))
        assert int(await raw.hget("rp:reserve:ann/r", "open")) == 2
    assert now.bytes == sum([int(await raw.hget(f"rp:batch:{b.batch_id}", "held_bytes")) for b in (kept, ended)])
    await store.batches.cancel(kept.batch_id)
    for one in (kept, ended):
        await store.batches.delete(one.batch_id)
    assert (await store.usage.read()).total == OwnerUsage()


async def test_the_reserve_comes_to_what_a_runs_rollouts_take(store: Store) -> None:
    async def reserve(run: str) -> int:
        return int(await store.usage._redis.hget(f"rp:reserve:ann/{run}", "bytes"))

    for _ in range(30):
        short = new_batch(10, owner="ann", run="short")
        await store.batches.submit(short, limits())
        await complete(store, short, 3000)
    assert await reserve("short") < 6000
    waits = new_batch(100, owner="ann", run="short")
    await store.batches.submit(waits, limits())
    assert (await usage(store, "ann")).reserved == 100 * await reserve("short")
    # It rises within some tens of rollouts where they become large, also for those that wait.
    long = new_batch(20, owner="ann", run="short")
    await store.batches.submit(long, limits())
    await complete(store, long, 60_000)
    assert await reserve("short") > 40_000
    assert (await usage(store, "ann")).reserved == 100 * await reserve("short")
    # Another run, and another owner's run of the same name, learn for themselves.
    for owner, run in (("ann", "other"), ("bob", "short")):
        await store.batches.submit(new_batch(1, owner=owner, run=run), limits())
        assert int(await store.usage._redis.hget(f"rp:reserve:{owner}/{run}", "bytes")) == NEW


async def test_rollouts_that_come_one_by_one_teach_too(store: Store) -> None:
    """As a caller of protocol v1 sends them: none is open when the next one comes."""
    for _ in range(3):
        batch = new_batch(1, owner="ann", v1=True)
        await store.batches.submit(batch, limits())
        await complete(store, batch)
    assert int(await store.usage._redis.hget("rp:reserve:ann/", "bytes")) == int(int(int(NEW * 0.99) * 0.99) * 0.99)
    assert await store.usage._redis.pttl("rp:reserve:ann/") > 0
    assert (await usage(store, "ann")).reserved == 0


async def test_what_fails_teaches_nothing(store: Store) -> None:
    batch = new_batch(50, owner="ann", run="r")
    await store.batches.submit(batch, limits())
    await store.batches.cancel(batch.batch_id)
    assert not await store.usage._redis.exists("rp:reserve:ann/r")


@pytest.mark.parametrize(
    ("quota", "cause", "count"),
    [
        (KeyQuota(open=5), RefusalCause.QUOTA_OPEN, "3 of its quota of 5"),
        (KeyQuota(weight=5), RefusalCause.QUOTA_WEIGHT, "4 of its quota of 5"),
        (KeyQuota(bytes=5 * NEW), RefusalCause.QUOTA_BYTES, "bytes of its quota of 327,680"),
    ],
)
async def test_who_is_past_a_quota_is_refused_and_nobody_else(
    store: Store, quota: KeyQuota, cause: RefusalCause, count: str
) -> None:
    within = limits(quota=quota)
    first = new_batch(3, owner="ann", weight=4)
    await store.batches.submit(first, within)
    with pytest.raises(OverQuota, match=count) as raised:
        await store.batches.submit(new_batch(3, owner="ann", weight=4), within)
    assert raised.value.cause is cause
    assert "'ann'" in raised.value.message
    await store.batches.submit(new_batch(3, owner="bob", weight=4), within)
    assert (await store.totals.read()).totals[f"refused:{cause}:ann"] == 1
    await store.batches.cancel(first.batch_id)
    await store.batches.submit(new_batch(3, owner="ann", weight=4), within)


async def test_a_refused_repetition_is_a_repetition(store: Store) -> None:
    within = limits(quota=KeyQuota(open=2))
    await store.batches.submit(new_batch(2, key="k"), within)
    assert not (await store.batches.submit(new_batch(2, key="k"), within)).created


async def test_where_memory_is_short_each_owner_gets_a_share(store: Store) -> None:
    flood = new_batch(140, owner="ann")
    await store.batches.submit(flood, limits())
    # Alone, an owner is told that there is no room.
    with pytest.raises(NoRoom):
        await store.batches.submit(new_batch(30, owner="ann"), limits())
    # Another one gets in, and from then on the first one is past their share.
    await store.batches.submit(new_batch(30, owner="bob"), limits())
    assert await refused(store, new_batch(1, owner="ann"), limits()) is RefusalCause.SHARE_BYTES
    assert await refused(store, new_batch(60, owner="bob"), limits()) is RefusalCause.SHARE_BYTES
    await store.batches.submit(new_batch(30, owner="bob"), limits())
    # All that is really used is nobody's share.
    with pytest.raises(NoRoom):
        await store.batches.submit(new_batch(1, owner="bob"), limits(memory=LIMIT - 1000))


async def test_from_85_percent_on_only_who_holds_less_gets_in(store: Store) -> None:
    await store.batches.submit(new_batch(1, owner="carl"), limits())
    # A long text, and hardly anything is reserved, so that there is room for all that was accepted.
    text = {"messages": [{"role": "user", "content": "x" * 6_000_000}]}
    await store.batches.submit(new_batch(1, owner="ann", shared=text), limits(memory=int(0.2 * LIMIT)))
    assert (await usage(store, "ann")).bytes > LIMIT // 2
    within = limits(memory=int(0.86 * LIMIT))
    assert await refused(store, new_batch(1, owner="ann"), within) is RefusalCause.SHARE_BYTES
    await store.batches.submit(new_batch(1, owner="bob"), within)
    await store.batches.submit(new_batch(1, owner="ann"), limits(memory=int(0.84 * LIMIT)))


async def test_who_holds_most_of_what_is_promised_leaves_the_rest_to_others(store: Store) -> None:
    await store.batches.submit(new_batch(1, owner="carl"), limits())
    await store.batches.submit(new_batch(90, owner="ann"), limits())
    within = limits(memory=int(0.86 * LIMIT))
    assert await refused(store, new_batch(1, owner="ann"), within) is RefusalCause.SHARE_BYTES
    await store.batches.submit(new_batch(1, owner="bob"), within)
    await store.batches.submit(new_batch(1, owner="ann"), limits(memory=int(0.3 * LIMIT)))


async def test_where_the_pool_is_full_each_owner_gets_a_share_of_it(store: Store) -> None:
    within = SubmitLimits(max_open=10)
    await store.batches.submit(new_batch(10, owner="ann"), within)
    with pytest.raises(TooManyOpen, match="10 of at most 10"):
        await store.batches.submit(new_batch(1, owner="ann"), within)
    await store.batches.submit(new_batch(5, owner="bob"), within)
    assert await refused(store, new_batch(1, owner="bob"), within) is RefusalCause.SHARE_OPEN


async def test_as_many_as_run_count_as_new_ones(store: Store) -> None:
    # A rollout of this run takes 20 kB, so 350 of them are most of the memory.
    for slots, room in ((10, True), (100, False)):
        await store.usage._redis.hset(f"rp:reserve:ann/{slots}", mapping={"bytes": 20_000, "learnt": 1})
        await store.usage.set_room(slots, None)
        batch = new_batch(350, owner="ann", run=str(slots))
        if room:
            await store.batches.submit(batch, limits())
            await store.batches.cancel(batch.batch_id)
            await store.batches.delete(batch.batch_id)
        else:
            with pytest.raises(NoRoom):
                await store.batches.submit(batch, limits())


def test_nothing_is_narrow_while_all_that_was_promised_is_there() -> None:
    fits = PoolUsage(100, OwnerUsage(100, 1, 0, 100 * NEW), {"ann": OwnerUsage(100, 1, 0, 100 * NEW)}, slots=50)
    assert room_of(fits, memory=1000, limit=LIMIT, new_bytes=NEW) is None
    assert room_of(fits, memory=LIMIT, limit=0, new_bytes=NEW) is None


def test_who_holds_most_leaves_what_the_others_were_promised() -> None:
    ann, bob = OwnerUsage(1000, 1, 6_000_000, 4_000_000), OwnerUsage(30, 1, 0, 30 * NEW)
    total = OwnerUsage(1030, 2, 6_000_000, 4_000_000 + 30 * NEW)
    room = room_of(PoolUsage(1030, total, {"ann": ann, "bob": bob}, 256), memory=6_000_000, limit=LIMIT, new_bytes=NEW)
    assert room == Room(all=4_000_000 // NEW, largest=(4_000_000 - 30 * NEW) // NEW, held=("ann",))


def test_where_rollouts_are_larger_than_new_ones_fewer_run() -> None:
    ann = OwnerUsage(100, 1, 0, 100 * 10 * NEW)
    room = room_of(PoolUsage(100, ann, {"ann": ann}, 256), memory=0, limit=LIMIT, new_bytes=NEW)
    assert room == Room(all=LIMIT // (10 * NEW), largest=LIMIT // (10 * NEW), held=("ann",))


async def test_only_so_many_are_published_and_those_who_hold_most_wait(store: Store) -> None:
    await announce(store, "w1", slots=100)
    flood, other = new_batch(20, owner="ann"), new_batch(6, owner="bob")
    for batch in (flood, other):
        await store.batches.submit(batch)
    await store.usage.set_room(100, Room(all=8, largest=3, held=("ann",)))

    async def publish() -> list[str]:
        return [f"{one.batch_id}-{one.index}" for one in await store.outbox.reserve(Priority.DEFAULT, 100)]

    published = await publish()
    assert [uid.startswith(flood.batch_id) for uid in published].count(True) <= 3
    assert len(published) == 8
    assert await publish() == []
    # What is claimed still counts; what has ended makes room.
    mine = next(uid for uid in published if uid.startswith(other.batch_id))
    held = await claim(store, mine)
    assert await publish() == []
    await store.rollouts.finish(held, result_of(held))
    assert [uid.rpartition("-")[0] for uid in await publish()] in ([other.batch_id], [])
    await store.usage.set_room(100, None)
    # All that was accepted is published in the end, once.
    rest = await publish()
    assert sorted({*published, *rest}) == sorted([*published, *rest])
    assert {*published, *rest} <= {*uids_of(flood), *uids_of(other)}


async def test_what_stands_there_is_not_written_again_each_second(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, clock = store.usage._redis, time.monotonic

    async def rewritten(slots: int) -> bool:
        await redis.delete("rp:room")
        await store.usage.set_room(slots, None)
        return bool(await redis.hget("rp:room", "slots") == str(slots).encode())

    await store.usage.set_room(8, None)
    assert not await rewritten(8)
    assert await rewritten(9)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ROOM_SECONDS / 2)
    assert await rewritten(9)
