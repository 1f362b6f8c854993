"""What nobody works on any more goes on elsewhere; what somebody works on is left alone."""

import asyncio

import pytest
import redis.asyncio
from tests.support.batches import OWNER, announce, beat, claim, declare_dead, submit
from tests.support.journals import turn_record
from tests.support.waiting import until

from rolloutpool_common.store import ClaimRefused, Store
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.reconciliation import MAX_CRASHES, ReconciliationReport, Removal


async def test_a_worker_that_was_thought_dead_learns_it_and_stops_what_it_had(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    (uid,) = await submit(store)
    await announce(store, "w")
    old = await claim(store, uid, "w")
    await declare_dead(store, "w")
    # Its ticket reaches the same process again before that has noticed anything.
    assert await store.rollouts.claim(uid, "w") == ClaimRefused("condemned")
    answer = await beat(store, "w", running=1, tokenizers={})
    assert answer.condemned
    assert answer.stop == [old.token]
    assert (await claim(store, uid, "another")).token != old.token


async def test_a_condemned_worker_claims_nothing_any_more_under_its_name(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    first, second = await submit(store, 2)
    await announce(store, "w")
    await claim(store, first, "w")
    assert not await store.workers.deregister("w")  # it is not condemned
    assert await declare_dead(store, "w") == Removal(requeued=1)
    assert await store.rollouts.claim(second, "w") == ClaimRefused("condemned")
    # Its ticket is used up; the rollout comes back by itself.
    assert await raw.zscore("rp:delayed", second) is not None
    await beat(store, "w", running=0, tokenizers={}, lifeline=True)
    assert await store.rollouts.claim(first, "w") == ClaimRefused("condemned")
    await announce(store, "w")
    assert await store.workers.known() == []
    assert await store.rollouts.claim(first, "w") == ClaimRefused("condemned")
    assert (await beat(store, "w", running=0, tokenizers={}, lifeline=True)).condemned
    # It ends then, and the process in its place has an id of its own.
    await announce(store, "w.2")
    assert (await claim(store, second, "w.2")).attempt == 1


async def die_further_on(store: Store, raw: redis.asyncio.Redis, uid: str, name: str) -> None:
    """A worker claims the rollout, gets one record further, and dies in the next step."""
    await announce(store, name)
    claimed = await claim(store, uid, name)
    records = await store.rollouts.read_journal(uid)
    await store.rollouts.journal(claimed, [*records, turn_record(len(records))], turns=len(records))
    assert await declare_dead(store, name) == Removal(requeued=1)


async def test_a_rollout_that_gets_on_and_kills_each_time_is_one_in_the_end(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    (uid,) = await submit(store)
    for number in range(10):
        await die_further_on(store, raw, uid, f"w{number}")
    assert await store.rollouts.claim(uid, "w10") == ClaimRefused.TAKEN


async def test_a_drain_is_no_crash(store: Store) -> None:
    (uid,) = await submit(store)
    for attempt in range(1, MAX_CRASHES + 3):
        claimed = await claim(store, uid)
        assert (claimed.attempt, claimed.crashes, claimed.clean) == (attempt, 0, True)
        await store.rollouts.release(claimed, clean=True)


async def test_a_round_asks_only_what_is_due_where_nothing_has_changed(
    store: Store, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uid,) = await submit(store)
    await announce(store, "w")
    await claim(store, uid, "w")
    await store.reconciliation.run_once()
    asked: list[str] = []
    script = Connection.script

    async def noted(self: Connection, name: str, *args: object) -> object:
        asked.append(name)
        return await script(self, name, *args)

    monkeypatch.setattr(Connection, "script", noted)
    before = await raw.info("stats")
    assert await store.reconciliation.run_once() == ReconciliationReport(leader=True)
    after = await raw.info("stats")
    assert asked == ["lead", "epoch", "tick"]
    # What the three run, and nothing beside them.
    assert after["total_commands_processed"] - before["total_commands_processed"] <= 24
    await raw.zadd("rp:deadlines", {uid: 1})
    await raw.zadd("rp:delayed", {"b-0": 1})
    asked.clear()
    await store.reconciliation.run_once()
    assert "requeue" in asked


async def test_of_two_reconcilers_one_leads_until_it_resigns(store: Store, other: Store) -> None:
    reports = await asyncio.gather(*(s.reconciliation.run_once() for s in (store, other, store, other)))
    assert {reports[0].leader, reports[1].leader} == {True, False}
    assert (reports[2].leader, reports[3].leader) == (reports[0].leader, reports[1].leader)
    leader, follower = (store, other) if reports[0].leader else (other, store)
    await follower.reconciliation.resign()  # is not its to give up
    assert not (await follower.reconciliation.run_once()).leader
    await leader.reconciliation.resign()
    assert (await follower.reconciliation.run_once()).leader


async def test_the_lead_of_a_dead_process_ends_by_itself(store: Store, other: Store, raw: redis.asyncio.Redis) -> None:
    await store.reconciliation.run_once()
    assert 0 < await raw.pttl("rp:leader") <= 3000
    await raw.pexpire("rp:leader", 1)

    async def leads() -> bool:
        return (await other.reconciliation.run_once()).leader

    await until(leads)


async def test_ended_batches_are_deleted_when_their_time_is_over(store: Store, raw: redis.asyncio.Redis) -> None:
    (old,), (young,), (running,) = await submit(store), await submit(store), await submit(store)
    for uid in (old, young):
        await store.rollouts.cancel(uid)
    assert (await store.reconciliation.run_once()).deleted == 0
    await raw.zadd("rp:ended", {old.rpartition("-")[0]: 1})
    # Left behind by a deletion that died before its last step.
    await raw.zadd("rp:ended", {"b" + "0" * 32: 1})
    assert (await store.reconciliation.run_once()).deleted == 2
    assert (await store.reconciliation.run_once()).deleted == 0
    assert await store.rollouts.view(old, OWNER) is None
    assert await store.rollouts.view(young, OWNER) is not None
    assert await store.rollouts.view(running, OWNER) is not None


async def test_a_death_with_a_known_cause_from_outside_makes_no_suspect(store: Store, raw: redis.asyncio.Redis) -> None:
    (uid,) = await submit(store)
    for attempt in range(1, 9):
        claimed = await claim(store, uid, f"w{attempt}")
        assert (claimed.attempt, claimed.crashes) == (attempt, 0)
        assert await store.reconciliation.take_back(uid, f"w{attempt}", "deaths") == 0
    # The limit of its whole life: after eight deaths each one counts.
    await claim(store, uid, "w9")
    assert await store.reconciliation.take_back(uid, "w9", "deaths") == 1
    assert await raw.hget(f"rp:rollout:{uid}", "crashes") is None
