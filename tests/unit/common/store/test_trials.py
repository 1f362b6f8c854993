"""Suspects are tried in cohorts that halve: the innocent are cleared in few rounds, and the guilty are found."""

import math

import pytest
from benchmarks.suspects import Case, simulate
from tests.support.batches import announce, claim, new_batch, submit
from tests.support.fake_store import FakeServer, fake_store
from tests.support.journals import turn_record

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, Store, new_token
from rolloutpool_common.store.model_calls import promisers
from rolloutpool_common.store.reconciliation import MAX_CRASHES

ISOLATED = WorkerRole.ISOLATED


async def suspects(store: Store, count: int, *, workers: int = 1, **shared: object) -> list[str]:
    """Rollouts that have lost two workers, and so many workers that can try them."""
    uids = await submit(store, count, shared={"idempotent": True, **shared})
    for victim in ("first", "second"):
        await announce(store, victim)
        for uid in uids:
            await claim(store, uid, victim)
        for uid in uids:
            assert await store.reconciliation.take_back(uid, victim) < MAX_CRASHES
        await store.workers.leave(victim)
    for n in range(workers):
        await announce(store, f"w{n}")
    return uids


async def take(store: Store, worker: str = "child", *, slots: int = 64, company_first: bool = False) -> list[str]:
    """The uids of the next cohort."""
    await announce(store, worker, role=ISOLATED)
    tokens = [new_token() for _ in range(slots)]
    return [uid for uid, _ in await store.trials.take(worker, "w0", tokens, company_first=company_first)]


async def die(store: Store, worker: str = "child", counter: str = "crashes") -> list[int]:
    """The worker dies with all that it holds."""
    found = [await store.reconciliation.take_back(uid, worker, counter) for uid in await store.workers.claims(worker)]
    await store.workers.leave(worker)
    return found


async def test_a_cohort_is_a_fair_share_and_halves_with_each_death(store: Store) -> None:
    uids = await suspects(store, 20, workers=2)
    for size in (10, 5, 3, 2, 1):
        cohort = await take(store)
        assert len(cohort) == size
        assert max(await die(store)) < MAX_CRASHES
    # The last one died alone, which could be chance. Now it is tried again, before all others.
    assert await take(store) == cohort
    assert await die(store) == [MAX_CRASHES]
    assert cohort[0] in uids


async def test_who_was_cleared_does_not_count_when_the_others_halve(store: Store) -> None:
    await suspects(store, 16)
    cohort = await take(store)
    assert len(cohort) == 16
    for uid in cohort[:10]:
        claimed = await store.rollouts.claim(uid, "child", ISOLATED, token=await token_of(store, uid))
        assert isinstance(claimed, Claim)
        await store.rollouts.journal(claimed, [turn_record(1)], turns=1)
    await die(store)
    assert len(await take(store)) == 3


async def token_of(store: Store, uid: str) -> str:
    return (await store.workers.tokens("child"))[uid]


@pytest.mark.parametrize(
    ("shared", "own", "size"),
    [
        ({"idempotent": False}, {}, 1),
        ({"idempotent": False}, {"idempotent": True}, 4),
        ({"idempotent": False, "protocol": "vllm"}, {}, 4),
        ({"idempotent": False, "protocol": "sglang"}, {"protocol": "callback"}, 1),
        ({}, {"idempotent": False}, 1),
        ({"idempotent": False, "metadata": {"idempotent": True}}, {}, 1),
        ({}, {"metadata": {"idempotent": False}}, 4),
    ],
)
async def test_only_those_whose_turn_may_be_asked_again_are_tried_together(
    store: Store, shared: dict[str, object], own: dict[str, object], size: int
) -> None:
    uids = await submit(store, [own] * 4, shared={"idempotent": True, **shared})
    for victim in ("first", "second"):
        for uid in uids:
            await claim(store, uid, victim)
            await store.reconciliation.take_back(uid, victim)
        await store.workers.leave(victim)
    await announce(store, "w0")
    assert len(await take(store)) == size


@pytest.mark.parametrize("promise", [1, 2])
async def test_rollouts_get_company_once_all_trainers_that_have_to_have_promised(store: Store, promise: int) -> None:
    """As workers note it with the first reply that has the header."""
    trainers = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    own: list[dict[str, object]] = [{"server_url": url} for url in trainers]
    # Of this one's trainer nothing is needed, and its promise is none of theirs.
    own += [{"server_url": "http://127.0.0.1:3", "idempotent": True}]
    uids = await submit(store, own)
    for victim in ("first", "second"):
        for uid in uids:
            claimed = await claim(store, uid, victim)
            has_promised = claimed.spec.server_url not in trainers[promise:]
            if has_promised:
                await store.model_calls.note_idempotent(claimed)
            assert await store.model_calls.is_idempotent(claimed) is has_promised
            await store.reconciliation.take_back(uid, victim)
        await store.workers.leave(victim)
    await announce(store, "w0")
    assert sorted(await take(store)) == sorted(uids[: 3 if promise == 2 else 1])


@pytest.mark.parametrize("trainers", [64, 65])
async def test_of_very_many_trainers_no_promises_are_looked_for(store: Store, trainers: int) -> None:
    new = new_batch([{"server_url": f"http://127.0.0.1:{n + 1}"} for n in range(trainers)])
    assert bool(promisers(new)) is (trainers == 64)


async def test_no_suspect_is_tried_twice_at_once_and_a_lost_answer_changes_nothing(store: Store) -> None:
    uids = await suspects(store, 8, workers=2)
    tokens = [new_token() for _ in range(64)]
    await announce(store, "child", role=ISOLATED)
    taken = await store.trials.take("child", "w0", tokens, company_first=False)
    assert sorted(await store.trials.take("child", "w0", tokens, company_first=False)) == sorted(taken)
    other = await take(store, "another")
    assert sorted([uid for uid, _ in taken] + other) == sorted(uids)
    assert await take(store, "third") == []


async def test_few_slots_make_a_small_cohort(store: Store) -> None:
    await suspects(store, 8)
    assert len(await take(store, slots=3)) == 3
    assert len(await take(store, "another")) == 5


async def test_a_death_from_outside_costs_nobody_anything(store: Store) -> None:
    await suspects(store, 8)
    for _ in range(3):
        assert len(await take(store)) == 8
        assert max(await die(store, counter="deaths")) == 2


async def test_those_with_company_do_not_wait_behind_those_without_nor_the_other_way(store: Store) -> None:
    alone = await suspects(store, 3, idempotent=False)
    together = await suspects(store, 3)
    assert sorted(await take(store, "a", company_first=True)) == together
    assert await take(store, "b", company_first=True) == alone[:1]
    assert await take(store, "c", company_first=False) == alone[1:2]


async def test_as_many_isolated_workers_are_started_as_there_are_cohorts(store: Store) -> None:
    assert not await store.trials.may_start("w0")
    await suspects(store, 3, workers=8)
    # Company 1, so three cohorts.
    assert [await store.trials.may_start(f"w{n}") for n in range(8)] == [True] * 3 + [False] * 5
    tokens = [new_token()]
    assert await store.trials.take("child", "w0", tokens, company_first=False)
    # Two wait, and two are still being started.
    assert not await store.trials.may_start("w5")
    # The child of this one has ended before it took any.
    assert await store.trials.may_start("w1")


@pytest.mark.parametrize("poison", [1, 3])
@pytest.mark.slow
async def test_of_many_suspects_the_innocent_are_cleared_in_few_rounds(poison: int) -> None:
    store = fake_store(FakeServer())
    trial = await simulate(store, Case(suspects=256, poison=poison))
    await store.close()
    assert trial.condemned == trial.poison
    assert len(trial.cleared) == 256 - poison
    assert trial.largest == 64
    # Each poison: 64 halves six times, then two strikes.
    assert trial.deaths <= poison * (math.log2(64) + 2)
    assert max(trial.cleared.values()) < (25 if poison == 1 else 45)


@pytest.mark.slow
async def test_chance_deaths_condemn_nobody_who_has_company() -> None:
    innocent = 0
    for seed in range(3):
        store = fake_store(FakeServer())
        trial = await simulate(store, Case(suspects=64, poison=1, chance=1.0, seed=seed))
        await store.close()
        assert trial.poison <= trial.condemned
        innocent += trial.innocent_condemned
    assert innocent == 0
