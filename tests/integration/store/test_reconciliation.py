"""What nobody works on any more goes on elsewhere; what somebody works on is left alone."""

import asyncio

import pytest
import redis.asyncio
from tests.support.batches import OWNER, announce, claim, declare_dead, result_of, submit
from tests.support.journals import turn_record
from tests.support.waiting import until

from rolloutpool_common.outcomes import Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import Delivery, Priority
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import ClaimLost, ClaimRefused, Store, deletion
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.reconciliation import MAX_CRASHES, ReconciliationReport, Removal


async def test_a_dead_worker_s_rollouts_are_queued_again_with_their_journal(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    uids = await submit(store, 3)
    await store.outbox.reserve(Priority.DEFAULT, 3)
    await announce(store, "dead")
    await announce(store, "alive")
    lost = [await claim(store, uid, "dead") for uid in uids[:2]]
    await claim(store, uids[2], "alive")
    await store.rollouts.journal(lost[0], [turn_record(1)], turns=1)
    report = await declare_dead(store, "dead")

    assert report == Removal(requeued=2)
    assert [worker.worker_id for worker in await store.workers.known()] == ["alive"]
    assert sorted(ticket.index for ticket in await store.outbox.reserve(Priority.DEFAULT, 9)) == [0, 1]
    again = await claim(store, uids[0], "alive")
    assert (again.attempt, again.crashes, again.journal_length, again.clean) == (2, 1, 1, False)
    with pytest.raises(ClaimLost):
        await store.rollouts.journal(lost[0], [turn_record(1), turn_record("zombie")], turns=2)
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(lost[1], result_of(lost[1]))


async def test_a_worker_that_was_thought_dead_learns_it_and_stops_what_it_had(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    (uid,) = await submit(store)
    await announce(store, "w")
    old = await claim(store, uid, "w")
    await declare_dead(store, "w")
    # Its ticket reaches the same process again before that has noticed anything.
    assert await store.rollouts.claim(uid, "w") == ClaimRefused("condemned")
    answer = await store.workers.beat("w", running=1, tokenizers={})
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
    await store.workers.beat("w", running=0, tokenizers={}, lifeline=True)
    assert await store.rollouts.claim(first, "w") == ClaimRefused("condemned")
    await announce(store, "w")
    assert await store.workers.known() == []
    assert await store.rollouts.claim(first, "w") == ClaimRefused("condemned")
    assert (await store.workers.beat("w", running=0, tokenizers={}, lifeline=True)).condemned
    # It ends then, and the process in its place has an id of its own.
    await announce(store, "w.2")
    assert (await claim(store, second, "w.2")).attempt == 1


async def test_a_rollout_that_kills_its_workers_is_poison(store: Store, raw: redis.asyncio.Redis) -> None:
    uid, neighbour = await submit(store, 2)
    for crash in range(1, MAX_CRASHES + 1):
        # After two crashes only a worker that runs nothing else gets it.
        name, role = f"w{crash}", WorkerRole.SHARED if crash <= 2 else WorkerRole.ISOLATED
        if crash > 2:
            assert await store.rollouts.claim(uid, "w9") == ClaimRefused.TAKEN
        await announce(store, name, role=role)
        assert (await claim(store, uid, name, role)).crashes == crash - 1
        if crash == 1:
            await claim(store, neighbour, "w1")
        report = await declare_dead(store, name)
        assert report.poisoned == (crash == MAX_CRASHES)
    view = await store.rollouts.view(uid, OWNER)
    assert view is not None
    assert view.status is RolloutStatus.FAILED
    assert view.result is not None
    failure = view.result["failure"]
    assert (failure["kind"], failure["category"]) == (FailureKind.INFRA, Category.POISON)
    assert await store.reconciliation.dead_letters() == [uid]
    assert not failure["retryable"]
    assert (await claim(store, neighbour, "w9")).crashes == 1
    assert await store.rollouts.claim(uid, "w9") == ClaimRefused("ended")


async def die_further_on(store: Store, raw: redis.asyncio.Redis, uid: str, name: str) -> None:
    """A worker claims the rollout, gets one record further, and dies in the next step."""
    await announce(store, name)
    claimed = await claim(store, uid, name)
    records = await store.rollouts.read_journal(uid)
    await store.rollouts.journal(claimed, [*records, turn_record(len(records))], turns=len(records))
    assert await declare_dead(store, name) == Removal(requeued=1)


async def test_a_rollout_that_gets_on_is_no_suspect(store: Store, raw: redis.asyncio.Redis) -> None:
    """Else whoever kills workers often enough kills innocent rollouts with them."""
    (uid,) = await submit(store)
    for number in range(9):
        await die_further_on(store, raw, uid, f"w{number}")
    assert (await claim(store, uid, "w9")).crashes == 1


async def test_a_rollout_that_gets_on_and_kills_each_time_is_one_in_the_end(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    (uid,) = await submit(store)
    for number in range(10):
        await die_further_on(store, raw, uid, f"w{number}")
    assert await store.rollouts.claim(uid, "w10") == ClaimRefused.TAKEN


async def test_a_suspect_waits_outside_of_the_outboxes_and_an_old_ticket_changes_nothing(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    (uid,) = await submit(store)
    for name in ("w1", "w2"):
        assert len(await store.outbox.reserve(Priority.DEFAULT, 9)) == 1
        await announce(store, name)
        await claim(store, uid, name)
        await declare_dead(store, name)
    assert await store.outbox.reserve(Priority.DEFAULT, 9) == []
    assert await store.rollouts.claim(uid, "w3") == ClaimRefused.TAKEN
    assert await raw.zrange("rp:suspects", 0, -1) == [uid]
    await store.rollouts.cancel(uid)
    assert not await raw.exists("rp:suspects")


async def test_a_suspect_that_fails_alone_and_kills_nobody_is_cleared(store: Store, raw: redis.asyncio.Redis) -> None:
    (uid,) = await submit(store)
    for name in ("w1", "w2"):
        await announce(store, name)
        await claim(store, uid, name)
        await declare_dead(store, name)
    alone = await claim(store, uid, "alone", WorkerRole.ISOLATED)
    assert await store.rollouts.give_back(alone, clean=True, counter="retries", delay_s=0)
    assert (await claim(store, uid, "w3")).crashes == 0


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
    assert "due" in asked


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


async def test_a_queued_rollout_expires_at_its_deadline(store: Store) -> None:
    late, timely = await submit(store, 1, deadline_s=0.001), await submit(store, 1, deadline_s=600)
    expired = 0

    async def once() -> bool:
        nonlocal expired
        expired += (await store.reconciliation.run_once()).expired
        return expired > 0

    await until(once)
    view = await store.rollouts.view(late[0], OWNER)
    assert view is not None
    assert view.result is not None
    assert (view.status, view.result["finish_reason"]) == (RolloutStatus.EXPIRED, FinishReason.DEADLINE)
    assert (await store.reconciliation.run_once()).expired == 0
    assert (await claim(store, timely[0])).attempt == 1


async def test_a_finished_rollout_has_no_deadline_left(store: Store, raw: redis.asyncio.Redis) -> None:
    (uid,) = await submit(store, deadline_s=600)
    claimed = await claim(store, uid)
    await store.rollouts.finish(claimed, result_of(claimed))
    assert await raw.exists("rp:deadlines") == 0


async def test_a_cancellation_whose_process_died_is_carried_through(store: Store, raw: redis.asyncio.Redis) -> None:
    uids = await submit(store, 100)
    batch_id = uids[0].rpartition("-")[0]
    # All that a process did that died in the middle: the mark, and some of the rollouts.
    await raw.hset(f"rp:batch:{batch_id}", "cancelled_ms", 1)
    await raw.sadd("rp:cancelling", batch_id)
    await store.rollouts.cancel(uids[0])
    assert (await store.reconciliation.run_once()).cancelled == 99
    status = await store.batches.status(batch_id, OWNER)
    assert status is not None
    assert status.counts[RolloutStatus.CANCELLED] == 100
    assert await raw.exists("rp:cancelling") == 0


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


async def test_a_batch_whose_pushes_wait_is_kept_for_a_day_more_and_no_longer(
    store: Store, raw: redis.asyncio.Redis
) -> None:
    to = Delivery(callback_url="http://127.0.0.1:9/", secret="long enough")
    waits, taken = [(await submit(store, delivery=to))[0] for _ in range(2)]
    for uid in (waits, taken):
        claimed = await claim(store, uid)
        await store.rollouts.finish(claimed, result_of(claimed))
        await raw.zadd("rp:ended", {uid.rpartition("-")[0]: 1})
    assert (await store.reconciliation.run_once()).deleted == 0
    # One is delivered, and goes. The other one has had its day.
    (push,) = [push for push in await store.pushes.take(9, lease_s=60) if push.uid == taken]
    await store.pushes.settle(push, "delivered")
    assert (await store.reconciliation.run_once()).deleted == 1
    assert await store.rollouts.view(waits, OWNER) is not None
    await raw.zadd("rp:ended", {waits.rpartition("-")[0]: 1})
    assert (await store.reconciliation.run_once()).deleted == 1
    assert await raw.exists("rp:push:due") == 0


async def test_a_deletion_that_was_broken_off_is_completed_although_pushes_wait(
    store: Store, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uid,) = await submit(store, delivery=Delivery(callback_url="http://127.0.0.1:9/", secret="long enough"))
    claimed = await claim(store, uid)
    await store.rollouts.finish(claimed, result_of(claimed))

    async def die(*_: object) -> None:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(deletion, "_delete_rollouts", die)
        with pytest.raises(KeyError):
            await store.batches.delete(uid.rpartition("-")[0])
    assert (await store.reconciliation.run_once()).deleted == 1
    assert await store.rollouts.view(uid, OWNER) is None


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
