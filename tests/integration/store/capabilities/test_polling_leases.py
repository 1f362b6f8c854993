"""Polling leases: renewed by looks, ended with their rollouts, over when nobody looks; and apart for each owner."""

import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, claim, new_batch, result_of, uids_of
from tests.support.served_clock import ServedClock

from rolloutpool_common.capabilities.osmosis.leases import LeaseLook, LeaseOutcome, PollingLeases, new_lease
from rolloutpool_common.capabilities.osmosis.stored import StoredOsmosis
from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import ClaimRefused, Store, SubmitLimits, TooManyOpen, keys

KEY = "osmosis/r"


async def leased(store: Store, name: str = "r", *, lasts_s: float = 120.0, owner: str = OWNER) -> tuple[str, str]:
    """Submits a rollout with a lease; returns its uid and the token."""
    token, lease = new_lease(lasts_s)
    batch = new_batch([{"rollout_id": name}], owner=owner, key=f"osmosis/{name}", v1=True, asks={"osmosis": lease})
    assert (await store.batches.submit(batch)).created
    return uids_of(batch)[0], token


async def result(store: Store, uid: str) -> RolloutResult:
    data = await store.rollouts.result(uid)
    assert data is not None
    return RolloutResult.model_validate_json(data)


async def test_a_look_needs_the_token_and_the_owner(store: Store) -> None:
    uid, token = await leased(store)
    batch_id = uid.rpartition("-")[0]
    assert await PollingLeases(store).look(OWNER, KEY, token) == LeaseLook(
        LeaseOutcome.OK, batch_id, RolloutStatus.QUEUED
    )
    for wrong in ("", token[:-1], token + "x", "\udcff"):
        assert await PollingLeases(store).look(OWNER, KEY, wrong) == LeaseLook(LeaseOutcome.REFUSED)
    for owner, key in (("somebody", KEY), (OWNER, "osmosis/other"), (OWNER, "r")):
        assert await PollingLeases(store).look(owner, key, token) == LeaseLook(LeaseOutcome.UNKNOWN)


async def test_a_look_says_what_the_one_before_has_found(store: Store) -> None:
    uid, token = await leased(store)

    async def seen() -> tuple[str, str]:
        look = await PollingLeases(store).look(OWNER, KEY, token)
        return look.told, look.status

    await claim(store, uid)
    assert [await seen(), await seen()] == [("queued", "running"), ("running", "running")]
    await store.rollouts.cancel(uid)
    assert [await seen(), await seen()] == [("running", "cancelled"), ("cancelled", "cancelled")]


async def test_a_batch_without_a_lease_is_unknown(store: Store) -> None:
    await store.batches.submit(new_batch(1, key=KEY))
    assert (await PollingLeases(store).look(OWNER, KEY, "t")).outcome is LeaseOutcome.UNKNOWN


async def test_redis_has_the_token_nowhere(store: Store, raw: Redis) -> None:
    uid, token = await leased(store)
    await PollingLeases(store).look(OWNER, KEY, token)
    found = [str(await _content(raw, key)) for key in map(str, await raw.keys("*"))]
    assert len(found) > 5
    assert not [text for text in found if token in text]
    assert [text for text in found if uid in text]


async def _content(raw: Redis, key: str) -> object:
    match await raw.type(key):
        case "hash":
            return await raw.hgetall(key)
        case "zset":
            return await raw.zrange(key, 0, -1)
        case "list":
            return await raw.lrange(key, 0, -1)
        case "stream":
            return await raw.xrange(key)
        case "set":
            return await raw.smembers(key)
    return await raw.get(key)


def batch_of(uid: str) -> str:
    return uid.rpartition("-")[0]


async def unpolled(store: Store, clock: ServedClock, seconds: int) -> list[str]:
    """Lets so many seconds pass in which nothing is amiss; returns the batches that were found in each of them."""
    found = []
    for _ in range(seconds):
        await clock.tick(1.0)
        found += [batch.decode() for batch in await store.connection.script("unpolled", 1000)]
    return found


async def end_unpolled(store: Store) -> int:
    """Ends what nobody polls, as the reconciler does; returns how many."""
    return await StoredOsmosis().tidy(store.connection, store.reconciliation)


async def left_s(raw: Redis, uid: str) -> float:
    """Seconds of the served clock until a lease is over."""
    due, clock = await raw.zscore("rp:leases:polled", batch_of(uid)), await raw.hget("rp:served", "clock_ms")
    assert due is not None
    assert clock is not None
    return (due - float(clock)) / 1000


async def test_a_look_renews_and_does_not_after_the_end(store: Store, raw: Redis) -> None:
    await (clock := ServedClock(store)).tick()
    uid, token = await leased(store)
    assert await left_s(raw, uid) == 120
    assert await unpolled(store, clock, 20) == []
    assert await left_s(raw, uid) < 101
    claimed = await claim(store, uid)
    assert (await PollingLeases(store).look(OWNER, KEY, token)).status is RolloutStatus.RUNNING
    assert await left_s(raw, uid) == 120
    await store.rollouts.finish(claimed, result_of(claimed))
    assert not await raw.exists("rp:leases:polled", "rp:polled:" + OWNER)
    look = await PollingLeases(store).look(OWNER, KEY, token)
    assert (look.outcome, look.status) == (LeaseOutcome.OK, RolloutStatus.COMPLETED)
    assert not await raw.exists("rp:leases:polled")


async def test_other_reads_of_its_owner_do_not_renew(store: Store, raw: Redis) -> None:
    """Only the holder of the token polls; a page that shows the batch must not keep it alive."""
    await (clock := ServedClock(store)).tick()
    uid, _ = await leased(store)
    await unpolled(store, clock, 20)
    assert await store.batches.total(batch_of(uid), OWNER, reader=OWNER) == 1
    await store.leases.renew(batch_of(uid))
    assert await left_s(raw, uid) < 101
    assert not await raw.exists("rp:leases")


async def test_the_name_is_free_some_time_after_the_end(store: Store, raw: Redis) -> None:
    uid, token = await leased(store)
    second = new_batch([{"rollout_id": "r"}], key=KEY, v1=True, asks={"osmosis": new_lease(9)[1]})
    assert not (await store.batches.submit(second)).created
    await store.rollouts.cancel(uid)
    ttl = await raw.pttl(keys.idempotency(OWNER, KEY))
    assert 890_000 < ttl <= 900_000
    await raw.delete(keys.idempotency(OWNER, KEY))
    assert (await PollingLeases(store).look(OWNER, KEY, token)).outcome is LeaseOutcome.UNKNOWN
    again, _ = await leased(store)
    assert await PollingLeases(store).live(OWNER) == {"r": again}


async def test_nobody_looks_and_the_rollout_ends(store: Store, raw: Redis) -> None:
    await (clock := ServedClock(store)).tick()
    lost, _ = await leased(store, lasts_s=30)
    kept, _ = await leased(store, "kept", lasts_s=60)
    running, _ = await leased(store, "running", lasts_s=30)
    claimed = await claim(store, running)
    assert await unpolled(store, clock, 28) == []
    over = await unpolled(store, clock, 3)
    assert set(over) == {batch_of(lost), batch_of(running)}
    # A reconciler that died now would leave them to the next.
    assert set(await unpolled(store, clock, 1)) == set(over)
    assert await end_unpolled(store) == 2
    ended = await result(store, lost)
    assert (ended.status, ended.samples) == (RolloutStatus.FAILED, [])
    assert ended.failure is not None
    assert (ended.failure.category, ended.failure.kind) == (Category.LEASE_EXPIRED, FailureKind.INFRA)
    # Its worker is told to stop, and can write nothing any more.
    assert await raw.smembers("rp:worker:w1:stop") == {claimed.token}
    assert await store.rollouts.claim(lost, "w1") == ClaimRefused.ENDED
    assert await PollingLeases(store).live(OWNER) == {"kept": kept}
    assert await unpolled(store, clock, 1) == []
    assert await end_unpolled(store) == 0


async def test_a_lease_that_was_found_over_does_not_begin_again(store: Store) -> None:
    await (clock := ServedClock(store)).tick()
    uid, token = await leased(store, lasts_s=20)
    over = (await unpolled(store, clock, 21))[-1]
    # Between the tick and the end of the rollout.
    assert (await PollingLeases(store).look(OWNER, KEY, token)).status is RolloutStatus.QUEUED
    assert await unpolled(store, clock, 1) == [over]
    assert await end_unpolled(store) == 1
    assert (await PollingLeases(store).look(OWNER, KEY, token)).status is RolloutStatus.FAILED
    assert (await result(store, uid)).failure is not None


async def test_the_reconciler_ends_it(store: Store) -> None:
    uid, _ = await leased(store, lasts_s=0.001)
    ended = 0
    for _ in range(16):
        redis = store.connection.redis
        if seen := await redis.hget("rp:served", "seen_ms"):
            await redis.hset("rp:served", "seen_ms", int(seen) - 1000)
        ended += (await store.reconciliation.run_once()).tidied
    assert ended == 1
    assert (await result(store, uid)).status is RolloutStatus.FAILED


async def test_what_is_gone_is_no_longer_looked_for(store: Store, raw: Redis) -> None:
    await (clock := ServedClock(store)).tick()
    await raw.zadd("rp:leases:polled", {"b" + "0" * 32: 1})
    uid, _ = await leased(store, lasts_s=1)
    await store.rollouts.cancel(uid)
    # As a process of an older version would leave it, which knows nothing of this list.
    await raw.zadd("rp:leases:polled", {batch_of(uid): 1})
    assert await unpolled(store, clock, 12) == []
    assert not await raw.exists("rp:leases:polled", "rp:batch:b" + "0" * 32)


async def test_no_gap_counts_as_silence(store: Store, raw: Redis) -> None:
    """Which gaps there are is for the clock's own tests."""
    await (clock := ServedClock(store)).tick()
    uid, _ = await leased(store, lasts_s=30)
    await unpolled(store, clock, 25)
    await clock.tick(600.0, serving=False)
    assert 0 < await left_s(raw, uid) < 6
    # Its holder waits before it asks again, so for some seconds nothing ends.
    assert await unpolled(store, clock, 9) == []
    assert await unpolled(store, clock, 3) != []


async def test_an_owner_reaches_their_own_alone(store: Store) -> None:
    mine, _ = await leased(store, "job-1")
    theirs, token = await leased(store, "job-1", owner="somebody")
    other, _ = await leased(store, "job-2", owner="somebody")
    assert await PollingLeases(store).live(OWNER) == {"job-1": mine}
    assert await PollingLeases(store).live("somebody") == {"job-1": theirs, "job-2": other}
    assert await PollingLeases(store).live(OWNER, ["job-1", "job-2", "x"]) == {"job-1": mine}
    assert await PollingLeases(store).live(OWNER, []) == {}
    assert (await PollingLeases(store).look(OWNER, "osmosis/job-1", token)).outcome is LeaseOutcome.REFUSED
    assert await PollingLeases(store).cancel([mine]) == {mine: RolloutStatus.QUEUED}
    assert await PollingLeases(store).status(theirs.rpartition("-")[0]) is RolloutStatus.QUEUED


async def test_a_cancel_says_where_each_stood(store: Store) -> None:
    queued, _ = await leased(store, "a")
    running, _ = await leased(store, "b")
    ended, _ = await leased(store, "c")
    await claim(store, running)
    await store.rollouts.cancel(ended)
    cancelled = await PollingLeases(store).cancel([queued, running, ended])
    assert cancelled == {queued: RolloutStatus.QUEUED, running: RolloutStatus.RUNNING}
    assert await PollingLeases(store).cancel([queued]) == {}
    assert await PollingLeases(store).live(OWNER) == {}


async def test_what_is_refused_leaves_no_lease(store: Store, raw: Redis) -> None:
    batch = new_batch([{"rollout_id": "r"}], key=KEY, v1=True, asks={"osmosis": new_lease(9)[1]})
    with pytest.raises(TooManyOpen):
        await store.batches.submit(batch, SubmitLimits(max_open=0))
    assert not await raw.exists("rp:leases:polled", "rp:polled:" + OWNER, keys.idempotency(OWNER, KEY))


async def test_one_that_was_cancelled_before_its_submit_has_no_lease(store: Store, raw: Redis) -> None:
    await store.rollouts.precancel("r", OWNER)
    uid, token = await leased(store)
    assert (await result(store, uid)).status is RolloutStatus.CANCELLED
    assert (await PollingLeases(store).look(OWNER, KEY, token)).status is RolloutStatus.CANCELLED
    assert not await raw.exists("rp:leases:polled")


def test_tokens_are_long_and_random() -> None:
    made = {new_lease(1)[0] for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 43
