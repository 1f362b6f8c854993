"""Polling leases: renewed by looks, ended with their rollouts, over when nobody looks; and apart for each owner."""

import asyncio

import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, claim, new_batch, result_of, uids_of
from tests.support.durable_redis import durable_redis
from tests.support.secrets import SECRETS

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import ClaimRefused, Store, TooManyOpen, answers, keys, new_lease, polling_leases
from rolloutpool_common.store.polling_leases import GRACE_SECONDS, LeaseLook, LeaseOutcome, PollingLeases

KEY = "osmosis/r"


class Clock:
    """A clock of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def leased(store: Store, name: str = "r", *, lasts_s: float = 120.0, owner: str = OWNER) -> tuple[str, str]:
    """Submits a rollout with a lease; returns its uid and the token."""
    token, lease = new_lease(lasts_s)
    batch = new_batch([{"rollout_id": name}], owner=owner, key=f"osmosis/{name}", v1=True, polling_lease=lease)
    assert (await store.batches.submit(batch)).created
    return uids_of(batch)[0], token


async def watching(store: Store, clock: Clock, epoch: int = 1) -> PollingLeases:
    """The reconciler's view, once it has watched for long enough to give a verdict."""
    found = PollingLeases(store.polling_leases._connection, store.rollouts, clock)
    for _ in range(int(GRACE_SECONDS)):
        assert await found.expire(epoch) == 0
        clock.now += 1
    return found


async def result(store: Store, uid: str) -> RolloutResult:
    data = await store.rollouts.result(uid)
    assert data is not None
    return RolloutResult.model_validate_json(data)


async def test_a_look_needs_the_token_and_the_owner(store: Store) -> None:
    uid, token = await leased(store)
    batch_id = uid.rpartition("-")[0]
    assert await store.polling_leases.look(OWNER, KEY, token) == LeaseLook(
        LeaseOutcome.OK, batch_id, RolloutStatus.QUEUED
    )
    for wrong in ("", token[:-1], token + "x", "\udcff"):
        assert await store.polling_leases.look(OWNER, KEY, wrong) == LeaseLook(LeaseOutcome.REFUSED)
    for owner, key in (("somebody", KEY), (OWNER, "osmosis/other"), (OWNER, "r")):
        assert await store.polling_leases.look(owner, key, token) == LeaseLook(LeaseOutcome.UNKNOWN)


async def test_a_look_says_what_the_one_before_has_found(store: Store) -> None:
    uid, token = await leased(store)

    async def seen() -> tuple[str, str]:
        look = await store.polling_leases.look(OWNER, KEY, token)
        return look.told, look.status

    await claim(store, uid)
    assert [await seen(), await seen()] == [("queued", "running"), ("running", "running")]
    await store.rollouts.cancel(uid)
    assert [await seen(), await seen()] == [("running", "cancelled"), ("cancelled", "cancelled")]


async def test_a_batch_without_a_lease_is_unknown(store: Store) -> None:
    await store.batches.submit(new_batch(1, key=KEY))
    assert (await store.polling_leases.look(OWNER, KEY, "t")).outcome is LeaseOutcome.UNKNOWN


async def test_redis_has_the_token_nowhere(store: Store, raw: Redis) -> None:
    uid, token = await leased(store)
    await store.polling_leases.look(OWNER, KEY, token)
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


async def test_a_look_renews_and_does_not_after_the_end(store: Store, raw: Redis) -> None:
    uid, token = await leased(store)
    first = await raw.zscore("rp:polling_leases", uid)
    await asyncio.sleep(0.02)
    claimed = await claim(store, uid)
    assert (await store.polling_leases.look(OWNER, KEY, token)).status is RolloutStatus.RUNNING
    second = await raw.zscore("rp:polling_leases", uid)
    assert (second or 0) > (first or 0) > 0
    await store.rollouts.finish(claimed, result_of(claimed))
    assert not await raw.exists("rp:polling_leases", "rp:polled:" + OWNER)
    look = await store.polling_leases.look(OWNER, KEY, token)
    assert (look.outcome, look.status) == (LeaseOutcome.OK, RolloutStatus.COMPLETED)
    assert not await raw.exists("rp:polling_leases")


async def test_the_name_is_free_some_time_after_the_end(store: Store, raw: Redis) -> None:
    uid, token = await leased(store)
    second = new_batch([{"rollout_id": "r"}], key=KEY, v1=True, polling_lease=new_lease(9)[1])
    assert not (await store.batches.submit(second)).created
    await store.rollouts.cancel(uid)
    ttl = await raw.pttl(keys.idempotency(OWNER, KEY))
    assert 890_000 < ttl <= 900_000
    await raw.delete(keys.idempotency(OWNER, KEY))
    assert (await store.polling_leases.look(OWNER, KEY, token)).outcome is LeaseOutcome.UNKNOWN
    again, _ = await leased(store)
    assert await store.polling_leases.live(OWNER) == {"r": again}


async def test_nobody_looks_and_the_rollout_ends(store: Store, raw: Redis) -> None:
    lost, _ = await leased(store, lasts_s=0.05)
    kept, _ = await leased(store, "kept")
    running, _ = await leased(store, "running", lasts_s=0.05)
    claimed = await claim(store, running)
    watch = await watching(store, Clock())
    await asyncio.sleep(0.06)
    assert await watch.expire(1) == 2
    ended = await result(store, lost)
    assert (ended.status, ended.samples) == (RolloutStatus.FAILED, [])
    assert ended.failure is not None
    assert (ended.failure.category, ended.failure.kind) == (Category.LEASE_EXPIRED, FailureKind.INFRA)
    # Its worker is told to stop, and can write nothing any more.
    assert await raw.smembers("rp:worker:w1:stop") == {claimed.token}
    assert await store.rollouts.claim(lost, "w1") == ClaimRefused.ENDED
    assert await store.polling_leases.live(OWNER) == {"kept": kept}
    assert await watch.expire(1) == 0


async def test_a_look_in_time_saves_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    uid, token = await leased(store, lasts_s=0.05)
    watch = await watching(store, Clock())
    await asyncio.sleep(0.06)
    # Between the reconciler's list and its verdict.
    read = answers.now_ms

    async def looked(redis: object) -> float:
        monkeypatch.setattr(polling_leases, "now_ms", read)
        now = await read(redis)
        await _renewed_for_long(store, uid)
        return now

    monkeypatch.setattr(polling_leases, "now_ms", looked)
    assert await watch.expire(1) == 0
    assert (await store.polling_leases.look(OWNER, KEY, token)).status is RolloutStatus.QUEUED


async def _renewed_for_long(store: Store, uid: str) -> None:
    await store.polling_leases._redis.zadd(keys.POLLING_LEASES, {uid: 2**50})


async def test_after_a_gap_nothing_is_over_until_holders_could_look(store: Store) -> None:
    await leased(store, lasts_s=0.001)
    await asyncio.sleep(0.01)
    clock = Clock()
    # A new leader, a leader that did not come to it for some time, and a Redis that was started again.
    fresh = PollingLeases(store.polling_leases._connection, store.rollouts, clock)
    assert await fresh.expire(1) == 0
    watch = await watching(store, clock)
    clock.now += 60
    assert await watch.expire(1) == 0
    watch = await watching(store, clock)
    assert await watch.expire(2) == 0
    watch = await watching(store, clock)
    assert await watch.expire(1, serving=False) == 0
    watch = await watching(store, clock)
    assert await watch.expire(1) == 1


async def test_an_owner_reaches_their_own_alone(store: Store) -> None:
    mine, _ = await leased(store, "job-1")
    theirs, token = await leased(store, "job-1", owner="somebody")
    other, _ = await leased(store, "job-2", owner="somebody")
    assert await store.polling_leases.live(OWNER) == {"job-1": mine}
    assert await store.polling_leases.live("somebody") == {"job-1": theirs, "job-2": other}
    assert await store.polling_leases.live(OWNER, ["job-1", "job-2", "x"]) == {"job-1": mine}
    assert await store.polling_leases.live(OWNER, []) == {}
    assert (await store.polling_leases.look(OWNER, "osmosis/job-1", token)).outcome is LeaseOutcome.REFUSED
    assert await store.polling_leases.cancel([mine]) == {mine: RolloutStatus.QUEUED}
    assert await store.polling_leases.status(theirs.rpartition("-")[0]) is RolloutStatus.QUEUED


async def test_a_cancel_says_where_each_stood(store: Store) -> None:
    queued, _ = await leased(store, "a")
    running, _ = await leased(store, "b")
    ended, _ = await leased(store, "c")
    await claim(store, running)
    await store.rollouts.cancel(ended)
    cancelled = await store.polling_leases.cancel([queued, running, ended])
    assert cancelled == {queued: RolloutStatus.QUEUED, running: RolloutStatus.RUNNING}
    assert await store.polling_leases.cancel([queued]) == {}
    assert await store.polling_leases.live(OWNER) == {}


async def test_what_is_refused_leaves_no_lease(store: Store, raw: Redis) -> None:
    batch = new_batch([{"rollout_id": "r"}], key=KEY, v1=True, polling_lease=new_lease(9)[1])
    with pytest.raises(TooManyOpen):
        await store.batches.submit(batch, max_open=0)
    assert not await raw.exists("rp:polling_leases", "rp:polled:" + OWNER, keys.idempotency(OWNER, KEY))


async def test_one_that_was_cancelled_before_its_submit_has_no_lease(store: Store, raw: Redis) -> None:
    await store.rollouts.precancel("r", OWNER)
    uid, token = await leased(store)
    assert (await result(store, uid)).status is RolloutStatus.CANCELLED
    assert (await store.polling_leases.look(OWNER, KEY, token)).status is RolloutStatus.CANCELLED
    assert not await raw.exists("rp:polling_leases")


async def test_a_killed_redis_has_lease_and_rollout_still() -> None:
    with durable_redis() as server:
        store = Store.open(server.url, secrets=SECRETS)
        try:
            uid, token = await leased(store)
            server.kill()
            server.start()
            look = await store.polling_leases.look(OWNER, KEY, token)
            assert (look.outcome, look.batch_id) == (LeaseOutcome.OK, uid.rpartition("-")[0])
            assert await store.polling_leases.live(OWNER) == {"r": uid}
        finally:
            await store.close()


def test_tokens_are_long_and_random() -> None:
    made = {new_lease(1)[0] for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 43
