"""Rollouts that only some workers can run wait apart, hold up nobody, and get to those that are suited."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakeredis import FakeRedis, FakeServer
from tests.support.batches import OWNER, announce, beat, claim, new_batch, status_of, submit, view_of
from tests.support.places import Place, places_of

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import RELEASE, digest_of, spell
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import ClaimRefused, Store, Ticket, keys, pool_waits
from rolloutpool_common.store.outbox import PER_WORKER

MAZE: dict[str, Any] = {"environment": {"name": "maze"}}
MAZE_OFFER = digest_of(spell(["environment:maze", RELEASE]))
LANE = "in its lane"


@pytest.fixture
def redis(server: FakeServer) -> FakeRedis:
    return FakeRedis(server=server, decode_responses=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the workers reads them again."""
    monkeypatch.setattr(pool_waits, "LOOK_SECONDS", 0.0)


async def workers(store: Store, plain: int = 1, suited: int = 1) -> None:
    """So many workers `plain{n}` without plug-ins and `maze{n}` with the environment, and a look at all of them."""
    for n in range(plain):
        await announce(store, f"plain{n}")
    for n in range(suited):
        await announce(store, f"maze{n}", environments=["maze"])
    await store.offers.look()


async def reserve(store: Store, limit: int = 5000) -> list[Ticket]:
    return await store.outbox.reserve(Priority.DEFAULT, limit)


def where(redis: FakeRedis, uids: Sequence[str]) -> list[str]:
    """The one place of each rollout; fails where one is nowhere, or in two."""
    found: list[str] = []
    for uid in uids:
        batch_id, index = keys.split_uid(uid) or ("", 0)
        (place,) = places_of(redis, batch_id, index)
        outbox = redis.lrange(f"rp:batch:{batch_id}:outbox", 0, -1)
        found.append(LANE if place is Place.OUTBOX and str(index) not in outbox else place)
    return found


def shown(tickets: Sequence[Ticket]) -> list[tuple[int, str]]:
    return [(ticket.index, ticket.offer) for ticket in tickets]


async def test_before_anybody_has_looked_each_gets_the_ordinary_queue(store: Store) -> None:
    await submit(store, [MAZE])
    assert shown(await reserve(store)) == [(0, "")]


async def test_of_several_suited_offers_each_gets_its_share(store: Store) -> None:
    await workers(store)
    await announce(store, "more", environments=["maze", "chess"])
    await store.offers.look()
    await submit(store, 10, shared=MAZE)
    offers = [ticket.offer for ticket in await reserve(store)]
    more = digest_of(spell(["environment:maze", "environment:chess", RELEASE]))
    assert sorted(offers) == sorted([MAZE_OFFER] * 5 + [more] * 5)


@pytest.mark.parametrize("mixed", [False, True], ids=["whole batches", "rollouts of a batch"])
async def test_what_nobody_has_waits_and_holds_up_nobody(store: Store, redis: FakeRedis, mixed: bool) -> None:
    await workers(store, suited=0)
    if mixed:
        stuck = [*await submit(store, [MAZE] * 300 + [{}])][:300]
    else:
        stuck = await submit(store, 300, shared=MAZE, run="a")
    beside = await submit(store, 2, run="a")
    tickets = await reserve(store)
    assert {ticket.offer for ticket in tickets} == {""}
    assert len(tickets) == 2 + mixed
    assert where(redis, stuck) == [LANE] * 300
    assert where(redis, beside) == [Place.PUBLISHED] * 2
    assert await reserve(store) == []
    # Somebody comes who has it.
    await announce(store, "maze", environments=["maze"])
    await store.offers.look()
    assert shown(await reserve(store)) == [(n, MAZE_OFFER) for n in range(PER_WORKER)]


async def test_an_offers_queue_has_the_window_of_its_workers_and_a_claim_makes_room(store: Store) -> None:
    await workers(store, plain=3)
    uids = await submit(store, PER_WORKER + 5, shared=MAZE)
    assert len(await reserve(store)) == PER_WORKER
    assert await reserve(store) == []
    assert (await claim(store, uids[0], "maze0")).more_waiting
    assert shown(await reserve(store)) == [(PER_WORKER, MAZE_OFFER)]


async def test_the_window_of_the_class_stays(store: Store) -> None:
    await workers(store)
    plain = await submit(store, 3 * PER_WORKER)
    assert len(await reserve(store)) == 2 * PER_WORKER
    await submit(store, 3, shared=MAZE)
    for uid in plain[:6]:
        assert await reserve(store) == []
        await claim(store, uid, "plain0")
        assert len(await reserve(store)) == 1
    depths = (await store.outbox.queue_depths())[Priority.DEFAULT]
    assert (depths.outbox, depths.published) == (PER_WORKER - 3, 2 * PER_WORKER)


async def test_runs_take_turns_in_a_lane_by_weight(store: Store) -> None:
    await workers(store, suited=0)
    first, second = new_batch(20, shared=MAZE, run="a", weight=3), new_batch(20, shared=MAZE, run="b")
    for batch in (first, second):
        await store.batches.submit(batch)
    assert await reserve(store) == []
    await announce(store, "maze", environments=["maze"])
    await store.offers.look()
    taken = [ticket.batch_id for ticket in await reserve(store, 8)]
    assert (taken.count(first.batch_id), taken.count(second.batch_id)) == (6, 2)


async def test_tickets_of_an_offer_whose_last_worker_is_gone_go_back_at_once(store: Store, redis: FakeRedis) -> None:
    await workers(store)
    uids = await submit(store, 3, shared=MAZE)
    assert len(await reserve(store)) == 3
    await claim(store, uids[0], "maze0")
    await beat(store, "maze0", running=1, tokenizers={}, draining=True)
    assert await store.offers.look() == [(Priority.DEFAULT, MAZE_OFFER)]
    assert where(redis, uids[1:]) == [Place.OUTBOX] * 2
    assert where(redis, uids[:1]) == [Place.RUNNING]
    assert await reserve(store) == []
    assert where(redis, uids[1:]) == [LANE] * 2
    # Once more, because the process may have died before it emptied the queue; then no more.
    assert await store.offers.look() == [(Priority.DEFAULT, MAZE_OFFER)]
    assert await store.offers.look() == []


@pytest.mark.parametrize("arrivals", [1, 2])
async def test_a_worker_that_lacks_something_gives_the_ticket_back_unclaimed(
    store: Store, redis: FakeRedis, arrivals: int
) -> None:
    await workers(store, plain=0)
    (uid,) = await submit(store, 1, shared=MAZE)
    assert shown(await reserve(store)) == [(0, "")]
    # It has started since, and nobody has looked at the workers again.
    await announce(store, "plain")
    for _ in range(arrivals):
        assert await store.rollouts.claim(uid, "plain") is ClaimRefused.UNSUITED
    assert where(redis, [uid]) == [LANE]
    view = await view_of(store, uid)
    assert (view.status, view.attempt) == (RolloutStatus.QUEUED, 0)
    assert shown(await reserve(store)) == [(0, MAZE_OFFER)]
    assert (await claim(store, uid, "maze0")).attempt == 1


async def test_an_old_ticket_of_a_rollout_that_waits_elsewhere_moves_nothing(store: Store, redis: FakeRedis) -> None:
    await workers(store)
    (uid,) = await submit(store, 1, shared=MAZE)
    assert await store.rollouts.claim(uid, "plain0") is ClaimRefused.UNSUITED
    assert where(redis, [uid]) == [Place.OUTBOX]


async def test_a_rollout_that_comes_back_is_in_front_of_those_of_its_lane(store: Store) -> None:
    await workers(store, plain=3)
    uids = await submit(store, PER_WORKER + 5, shared=MAZE)
    await reserve(store)
    held = await claim(store, uids[0], "maze0")
    await store.rollouts.release(held, clean=True)
    # The place that it leaves was promised to the next one; it has the one after that.
    assert shown(await reserve(store)) == [(PER_WORKER, MAZE_OFFER)]
    await claim(store, uids[1], "maze0")
    assert shown(await reserve(store)) == [(0, MAZE_OFFER)]


async def test_a_suspect_is_tried_only_by_a_worker_that_is_suited(store: Store, redis: FakeRedis) -> None:
    await workers(store)
    (uid,) = await submit(store, 1, shared=MAZE)
    redis.hset(keys.rollout(uid), mapping={"status": "queued", "crashes": 2})
    assert len(await reserve(store)) == 1
    assert await store.rollouts.claim(uid, "maze0") is ClaimRefused.TAKEN
    assert where(redis, [uid]) == [Place.SUSPECTS]
    await announce(store, "alone", role=WorkerRole.ISOLATED)
    assert not await store.trials.may_start("plain0")
    assert await store.trials.take("alone", "plain0", ["t"], company_first=False) == []
    assert await store.rollouts.claim(uid, "alone", WorkerRole.ISOLATED) is ClaimRefused.UNSUITED
    assert where(redis, [uid]) == [Place.SUSPECTS]
    await announce(store, "suited", role=WorkerRole.ISOLATED, environments=["maze"])
    assert await store.trials.may_start("maze0")
    assert await store.trials.take("suited", "maze0", ["t"], company_first=False) == [(uid, "t")]
    assert where(redis, [uid]) == [Place.RUNNING]


async def test_what_waits_in_lanes_is_counted_with_the_outboxes(store: Store) -> None:
    await workers(store, suited=0)
    await submit(store, [MAZE, {}, MAZE])
    await reserve(store)
    depths = (await store.outbox.queue_depths())[Priority.DEFAULT]
    assert (depths.outbox, depths.published) == (2, 1)


async def test_the_state_says_what_no_live_worker_has(store: Store) -> None:
    await workers(store, suited=0)
    uids = await submit(store, [MAZE, {}, {"grader": {"name": "judge"}, **MAZE}])
    status = await status_of(store, uids[0])
    assert [(one.waits_for, one.message) for one in status.waiting] == [
        (WaitsFor.WORKER, "no live worker has environment 'maze'; start one that does"),
        (WaitsFor.WORKER, "no live worker has environment 'maze', grader 'judge'; start one that does"),
    ]
    waiting = [(await store.rollouts.view(uid, OWNER)) for uid in uids]
    assert [view is not None and view.waiting is not None for view in waiting] == [True, False, True]


async def test_the_slots_of_those_that_are_not_suited_do_not_count(store: Store) -> None:
    await workers(store)
    (uid,) = await submit(store, 1, shared=MAZE)
    await beat(store, "maze0", running=1, tokenizers={})
    view = await view_of(store, uid)
    assert view.waiting is not None
    assert view.waiting.message == "all 1 slots of 1 suited workers are taken"


async def test_what_needs_nothing_goes_on_beside_what_does_where_no_worker_is_there_yet(store: Store) -> None:
    await store.offers.look()
    await submit(store, [{}, MAZE, {}])
    assert [ticket.index for ticket in await reserve(store)] == [0, 2]
