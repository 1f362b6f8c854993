"""Versions of a run, and what a pause does to its rollouts in the queue."""

import pytest
from tests.support.batches import (
    NOWHERE,
    OWNER,
    batch_of,
    claim,
    new_batch,
    result_of,
    status_of,
    submit,
    uids_of,
    view_of,
)

from rolloutpool_common.capabilities.grading.kept import GradingClaim, KeptRollouts
from rolloutpool_common.capabilities.grading.stored import Grading
from rolloutpool_common.capabilities.runs.claimed import ClaimedRun
from rolloutpool_common.capabilities.runs.steering import RunFacts, Runs, RunUnknown, TooManyRuns, VersionLower
from rolloutpool_common.capabilities.runs.stored import StoredRuns, steering_key
from rolloutpool_common.capabilities.runs.wire import OnStale
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause, Priority
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.store import Claim, ClaimRefused, Store
from rolloutpool_common.store.keys import run_key

RUN = "job7"
KEY = run_key(OWNER, RUN)


async def published(store: Store, limit: int = 1000) -> list[str]:
    return [f"{t.batch_id}-{t.index}" for t in await store.outbox.reserve(Priority.DEFAULT, limit)]


async def end_pauses(store: Store) -> int:
    """What the reconciler does once a second, where a pause is over."""
    return await StoredRuns().tidy(store.connection, store.reconciliation)


class TestVersion:
    async def test_it_never_goes_back_unless_that_is_meant(self, store: Store) -> None:
        for version in (0, 9, 10, 10, 10**15 - 1):
            assert (await Runs(store).announce(OWNER, RUN, version)).policy_version == version
        with pytest.raises(VersionLower, match=str(10**15 - 1)):
            await Runs(store).announce(OWNER, RUN, 10**15 - 2)
        assert (await Runs(store).announce(OWNER, RUN, 9, rollback=True)).policy_version == 9
        assert (await Runs(store).announce(OWNER, RUN, 10)).policy_version == 10

    async def test_two_owners_with_one_name_do_not_meet(self, store: Store) -> None:
        await Runs(store).announce("a", RUN, 5)
        await Runs(store).announce("b", RUN, 1)
        await Runs(store).pause("b", RUN, limit_s=60)
        assert (await Runs(store).read("a", RUN)).policy_version == 5
        assert (await Runs(store).look(run_key("a", RUN))) == RunFacts(paused=False, announced=5)
        assert (await Runs(store).look(run_key("b", RUN))) == RunFacts(paused=True, announced=1)
        # Names with slashes cannot be mistaken for another owner's either, because names of keys have none.
        await Runs(store).announce("a", "b/x", 7)
        with pytest.raises(RunUnknown):
            await Runs(store).read("a/b", "y")

    async def test_what_rollouts_report_counts_until_something_is_announced(self, store: Store) -> None:
        await submit(store, run=RUN)
        for version in (4, 6, 5):
            await Runs(store).report(KEY, version)
        assert (await Runs(store).look(KEY)).version == 6
        await Runs(store).announce(OWNER, RUN, 5)
        assert (await Runs(store).look(KEY)).version == 5
        state = await Runs(store).read(OWNER, RUN)
        assert (state.policy_version, state.reported_version) == (5, 6)

    async def test_a_run_is_forgotten_a_week_after_its_last_use_unless_it_is_paused(self, store: Store) -> None:
        redis = store.connection.redis
        await Runs(store).announce(OWNER, RUN, 1)
        assert 0 < await redis.ttl(f"rp:steering:{KEY}") <= 7 * 86400
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        assert await redis.ttl(f"rp:steering:{KEY}") == -1
        await Runs(store).resume(OWNER, RUN)
        assert 0 < await redis.ttl(f"rp:steering:{KEY}") <= 7 * 86400

    async def test_no_caller_can_fill_redis_with_runs(self, store: Store) -> None:
        redis = store.connection.redis
        time = await redis.time()
        await redis.zadd("rp:known_runs", {f"{OWNER}/{n}": time[0] * 1000 for n in range(10_000)})
        with pytest.raises(TooManyRuns):
            await Runs(store).announce(OWNER, RUN, 1)
        # A batch of such a run is taken all the same.
        uids = await submit(store, run=RUN)
        assert await published(store) == uids


class TestPause:
    async def test_a_ticket_on_its_way_is_claimed_in_vain_and_comes_again(self, store: Store) -> None:
        (uid,) = await submit(store, run=RUN)
        assert await published(store) == [uid]
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        assert await store.rollouts.claim(uid, "w1") is ClaimRefused.PAUSED
        # A second ticket of the same rollout changes nothing.
        assert await store.rollouts.claim(uid, "w1") is ClaimRefused.PAUSED
        assert await published(store) == []
        await Runs(store).resume(OWNER, RUN)
        assert set(await published(store)) == {uid}
        claimed = await store.rollouts.claim(uid, "w1")
        assert isinstance(claimed, Claim)
        assert (claimed.attempt, ClaimedRun.of(claimed).run) == (1, KEY)

    async def test_a_paused_run_comes_back_in_every_class(self, store: Store) -> None:
        high = await submit(store, run=RUN, priority=Priority.HIGH)
        low = await submit(store, run=RUN, priority=Priority.LOW)
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        await Runs(store).resume(OWNER, RUN)
        state = await Runs(store).resume(OWNER, RUN)
        assert (state.paused_at, state.pause_left_s) == (None, None)
        tickets = [await store.outbox.reserve(priority, 10) for priority in (Priority.HIGH, Priority.LOW)]
        assert [f"{t.batch_id}-{t.index}" for some in tickets for t in some] == [*high, *low]

    async def test_ten_thousand_rollouts_of_a_paused_run_cost_nothing(self, store: Store) -> None:
        batch = new_batch(10_000, run=RUN)
        await store.batches.submit(batch)
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        assert [reserved.tickets for reserved in await store.outbox.reserve_all(500)] == [[], [], []]
        # The publisher asks for more only where more waits.
        assert not any(reserved.more_waiting for reserved in await store.outbox.reserve_all(500))
        status = await status_of(store, batch.batch_id)
        assert [(wait.waits_for, wait.rollouts) for wait in status.waiting] == [(WaitsFor.PAUSED, 10_000)]

    async def test_rollouts_say_that_they_wait_for_it(self, store: Store) -> None:
        first, second = await submit(store, 2, run=RUN)
        await claim(store, first)
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        for uid in (first, second):
            view = await view_of(store, uid)
            assert view.waiting is not None
            assert view.waiting.waits_for is WaitsFor.PAUSED
            assert RUN in view.waiting.message
        await store.rollouts.cancel(second)
        await store.batches.cancel(batch_of(second))
        for uid in (first, second):
            view = await view_of(store, uid)
            assert view.result is not None
            assert view.result["waited_for"]["waits_for"] == "paused"

    async def test_a_pause_that_nobody_ends_ends_with_the_batches(self, store: Store) -> None:
        redis = store.connection.redis
        open_batch, ended = new_batch(3, run=RUN), new_batch(1, run=RUN)
        foreign = new_batch(1, run=RUN, owner="other")
        for batch in (open_batch, ended, foreign):
            await store.batches.submit(batch)
        await store.rollouts.cancel(uids_of(ended)[0])
        await Runs(store).pause(OWNER, RUN, limit_s=60)
        assert await end_pauses(store) == 0
        await redis.hset("rp:served", "clock_ms", 60_000)
        assert await end_pauses(store) == 1
        assert (await Runs(store).read(OWNER, RUN)).paused_at is None
        # While it was paused it was kept for ever.
        assert await redis.ttl(steering_key(KEY)) > 0
        status = await status_of(store, open_batch.batch_id)
        assert (status.cancel_cause, status.counts[RolloutStatus.CANCELLED]) == (CancelCause.PAUSE, 3)
        theirs = await store.batches.status(foreign.batch_id, "other")
        assert theirs is not None
        assert not theirs.cancelled
        totals = (await store.totals.read()).totals
        assert (totals["cancelled_for:pause"], totals["pauses"]) == (1, 1)


class TestStaleBatches:
    async def test_a_claim_says_what_its_batch_allows(self, store: Store) -> None:
        (uid,) = await submit(store, run=RUN, asks={"runs": (2, OnStale.RESTART)})
        held = await claim(store, uid)
        assert ClaimedRun.of(held) == (KEY, 2, OnStale.RESTART, 0)
        (plain,) = await submit(store, shared={"server_url": NOWHERE})
        assert (await claim(store, plain)).notes == {}

    async def test_a_restart_is_counted_and_forgets_the_journal(self, store: Store) -> None:
        (uid,) = await submit(store, run=RUN, asks={"runs": (0, OnStale.RESTART)})
        held = await claim(store, uid)
        await store.rollouts.restart(held)
        assert await store.rollouts.give_back(held, clean=True, counter="stale", delay_s=0.0)
        # The answer was lost, and it is sent again.
        assert not await store.rollouts.give_back(held, clean=True, counter="stale", delay_s=0.0)
        again = await claim(store, uid)
        assert (ClaimedRun.of(again).restarts, again.journal_length, again.clean) == (1, 0, True)
        status = await status_of(store, uid)
        assert status.stale == {"restarted": 1}
        assert (await store.totals.read()).totals["stale:restarted"] == 1


class TestGrades:
    """No worker gets a rollout of a paused run, so what waits for its grade has the time that it had before."""

    async def test_a_group_that_is_complete_in_a_pause_is_graded_after_it(self, store: Store) -> None:
        batch = new_batch(3, run=RUN, groups=["g", "g", "g"], asks={"grading": True})
        await store.batches.submit(batch)
        first, second, third = [await claim(store, uid) for uid in uids_of(batch)]
        kept, redis = KeptRollouts(store), store.connection.redis
        assert await kept.begin(first, result_of(first), seconds=600, group="g") == "held"
        await Runs(store).pause(OWNER, RUN, limit_s=3600)
        assert await kept.begin(second, result_of(second), seconds=600, group="g") == "held"
        # The pause has lasted for longer than the grader's time.
        await redis.hincrby(f"rp:steering:{KEY}", "paused_ms", -1_000_000)
        await redis.hincrby(f"rp:batch:{batch.batch_id}:group_counts", "due:g", -1_000_000)
        for claimed in (first, second):
            await redis.zincrby("rp:grading", -1_000_000, claimed.uid)
        assert await kept.begin(third, result_of(third), seconds=600, group="g") == "held"
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        await Runs(store).resume(OWNER, RUN)
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        assert await published(store) == [first.uid]
        leader = await claim(store, first.uid, "another")
        assert GradingClaim.of(leader).leads
        # As long as before, however often the reconciler has looked meanwhile.
        assert GradingClaim.of(leader).due_in_s == pytest.approx(600, abs=30)

    async def test_only_the_run_that_goes_on_gets_time(self, store: Store) -> None:
        claims = []
        for run in (RUN, "other"):
            batch = new_batch(1, run=run, asks={"grading": True})
            await store.batches.submit(batch)
            claims.append(await claim(store, uids_of(batch)[0]))
            await KeptRollouts(store).begin(claims[-1], result_of(claims[-1]), seconds=600, group=None)
        await Runs(store).pause(OWNER, RUN, limit_s=3600)
        before = [float(await store.connection.redis.zscore("rp:grading", one.uid)) for one in claims]
        await store.connection.redis.hincrby(f"rp:steering:{KEY}", "paused_ms", -100_000)
        for _ in range(2):
            # The second time it is not paused any more.
            await Runs(store).resume(OWNER, RUN)
        after = [float(await store.connection.redis.zscore("rp:grading", one.uid)) for one in claims]
        assert after[0] - before[0] == pytest.approx(100_000, abs=30_000)
        assert after[1] == before[1]
