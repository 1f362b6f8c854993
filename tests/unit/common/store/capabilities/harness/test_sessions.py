"""The calls of sessions in Redis: what is a repetition, who is woken, and what ends them."""

import asyncio
from typing import Any

import pytest
from tests.support.batches import claim, result_of, submit

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.capabilities.harness.calls import ModelCall
from rolloutpool_common.capabilities.harness.sessions import Arrival, OpenSession, Sessions, TakenCall
from rolloutpool_common.capabilities.harness.stored import Harness
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.store import Claim, ClaimLost, Store

REPLY = {"message": {"role": "assistant", "content": "8"}, "finish_reason": "stop"}
DOOR = "door:1"


class Session:
    """A claimed rollout with a harness, and a door that calls for it."""

    def __init__(self, store: Store, opened: OpenSession, claimed: Claim) -> None:
        self.store, self.opened, self.claim = store, opened, claimed
        self.sessions = Sessions(store)
        self.uid = opened.uid

    async def take(self, text: str = "hello", holder: str = f"{DOOR} s1 1", place: int = 1, **came: Any) -> TakenCall:
        call = ModelCall([{"role": "user", "content": text}], [])
        return await self.sessions.take(self.opened, call, Arrival(place, holder, **came))

    async def answer(self, n: int) -> int:
        return await self.sessions.answer(self.claim, n, REPLY)

    async def release(self, seconds: float) -> None:
        """Gives the rollout back, to wait for the next call."""
        await self.store.rollouts.give_back(
            self.claim, clean=True, counter="capacity", delay_s=seconds, why="SessionIdle"
        )

    async def claim_again(self) -> None:
        self.claim = await claim(self.store, self.uid)

    async def delayed(self) -> bool:
        return await self.store.connection.redis.zscore("rp:delayed", self.uid) is not None


async def opened(store: Store, **choice: Any) -> Session:
    shared = {"harness": choice or {"external": True}, "grader": {"name": "judge"}}
    (uid,) = await submit(store, shared=shared, asks={"harness": True, "grading": True})
    found = await Sessions(store).open(uid)
    assert found is not None
    await Sessions(store).beat(DOOR, "s1")
    return Session(store, found, await claim(store, uid))


@pytest.fixture
async def session(store: Store) -> Session:
    return await opened(store)


async def test_what_arrives_twice_is_one_call(session: Session) -> None:
    """The answer of the script was lost, and the connection sends it once more."""
    assert (await session.take(holder=f"{DOOR} s1 1")).n == 1
    assert (await session.take(holder=f"{DOOR} s1 1")).n == 1
    assert (await session.take(holder=f"{DOOR} s1 2")).n == 2


async def test_an_older_connection_that_ends_says_nothing_of_the_one_that_holds_the_call(session: Session) -> None:
    """The program repeats its call while the door has not noticed yet that the first connection is gone."""
    first, second = f"{DOOR} s1 1", f"{DOOR} s1 2"
    await session.take(holder=first)
    await session.take(holder=second, repeats=True)
    await session.sessions.hear(session.uid, 1, first, taken=False)
    await session.answer(1)
    await session.sessions.hear(session.uid, 1, second, taken=True)
    assert (await session.take(holder=f"{DOOR} s1 3")).n == 2


async def test_a_program_that_was_started_again_gets_the_replies_that_it_had(store: Store) -> None:
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    await session.sessions.take_place("t1", 15)
    await session.take(holder=f"{DOOR} s1 1")
    await session.answer(1)
    await session.sessions.hear(session.uid, 1, f"{DOOR} s1 1", taken=True)
    await store.connection.redis.hset(f"rp:rollout:{session.uid}:session", "place", 2)
    assert (await session.take(place=1)).outcome == "place"
    taken = await session.take(place=2, holder=f"{DOOR} s1 2")
    assert (taken.n, taken.reply) == (1, REPLY)
    await session.sessions.hear(session.uid, 1, f"{DOOR} s1 2", taken=True)
    assert (await session.take(place=2, holder=f"{DOOR} s1 3")).n == 2


async def test_with_restart_it_gets_none_of_them_also_not_of_calls_that_were_cut(store: Store) -> None:
    session = await opened(store, command=["x"], on_death="restart")
    await session.sessions.want_place(session.claim, reuse=False)
    await session.take(holder=f"{DOOR} s1 1")
    await session.sessions.hear(session.uid, 1, f"{DOOR} s1 1", taken=False)
    await store.connection.redis.hset(f"rp:rollout:{session.uid}:session", "place", 2)
    assert (await session.take(place=2, holder=f"{DOOR} s1 2", repeats=True)).n == 2


async def test_a_call_ends_the_wait_of_a_session_that_was_given_back(session: Session) -> None:
    assert await session.sessions.idle(session.claim, 0, 900) == 900
    await session.release(900)
    assert await session.delayed()
    await session.take()
    assert not await session.delayed()
    await session.claim_again()
    assert await session.sessions.idle(session.claim, 0, 900) < 0


@pytest.mark.parametrize("comes", ["a call", "its end"])
async def test_what_comes_while_its_worker_gives_it_back_is_seen_at_once(session: Session, comes: str) -> None:
    """Where more than sixteen sessions linger, one is given back as soon as its program has a reply."""
    assert await session.sessions.idle(session.claim, 0, 900) == 900
    if comes == "a call":
        await session.take()
    else:
        assert await session.sessions.end(session.uid, SessionEnd(reward=1.0)) == "ok"
    await session.release(900)
    assert not await session.delayed()


async def test_a_program_s_end_while_its_worker_gives_it_back_is_not_lost(store: Store) -> None:
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    place = await session.sessions.take_place("t1", 15)
    assert place is not None
    assert await session.sessions.idle(session.claim, 0, 900) == 900
    assert await session.sessions.leave_place(place, SessionEnd())
    await session.release(900)
    assert not await session.delayed()


async def test_the_wait_for_a_runner_is_no_silence_of_the_program(store: Store) -> None:
    """A thousand sessions may wait for the ten places that there are, for longer than a program may be silent."""
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    assert await session.sessions.idle(session.claim, 0, 0.2) == 0.2
    await asyncio.sleep(0.3)
    assert await session.sessions.idle(session.claim, 0, 0.2) == 0.2
    await asyncio.sleep(0.3)
    assert await session.sessions.take_place("t1", 15) is not None
    # From now on it counts.
    assert 0 < await session.sessions.idle(session.claim, 0, 0.2) <= 0.2
    await asyncio.sleep(0.3)
    assert await session.sessions.idle(session.claim, 0, 0.2) == 0


@pytest.mark.parametrize("cause", ["started", "out of reach"])
@pytest.mark.parametrize("first", ["a runner that looks for work", "the place's own"])
async def test_places_are_not_lost_while_redis_is_away(store: Store, cause: str, first: str) -> None:
    """Nobody could renew a lease. Once a runner reaches Redis again, leases last as long as they would from then on."""
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    place = await session.sessions.take_place("t1", 0.1)
    assert place is not None
    await asyncio.sleep(0.2)
    if cause == "started":
        await store.connection.redis.hincrby("rp:epoch", "number", 2)
    else:
        await store.connection.redis.hincrby("rp:places:heard", "ms", -6000)
    if first == "the place's own":
        assert await session.sessions.hold_place(place, 0.1)
    else:
        assert await session.sessions.take_place("t2", 0.1) is None
        assert await session.sessions.hold_place(place, 0.1)
    await asyncio.sleep(0.2)
    # The start was a while ago, or the clock was an hour ahead then.
    apart = 3_600_000 if first == "the place's own" else -6000
    await store.connection.redis.hincrby("rp:places:heard", "started", apart)
    again = await session.sessions.take_place("t2", 0.1)
    assert again is not None
    assert again.losses == 1


@pytest.mark.parametrize("ends", [False, True], ids=["runs", "has ended"])
async def test_a_place_whose_taking_redis_has_lost_is_not_given_out_again(store: Store, ends: bool) -> None:
    """Two programs would have one number, and no door could tell them apart."""
    session, redis = await opened(store, command=["x"]), store.connection.redis
    await session.sessions.want_place(session.claim, reuse=True)
    place = await session.sessions.take_place("t1", 15)
    assert place is not None
    await redis.hdel(f"rp:rollout:{session.uid}:session", "place", "lease")
    await redis.zrem("rp:places:held", session.uid)
    await redis.zadd("rp:places:wanted", {session.uid: 1})
    await redis.hset("rp:epoch", "number", 9)
    assert await session.sessions.take_place("t2", 15) is None
    sessions = session.sessions
    assert await (sessions.leave_place(place, SessionEnd()) if ends else sessions.hold_place(place, 15))
    await redis.hincrby("rp:places:heard", "started", -6000)
    assert await sessions.take_place("t2", 15) is None
    state = await sessions.state(session.uid)
    assert (state.place, state.end) == (1, SessionEnd() if ends else None)


async def test_a_program_whose_place_redis_has_lost_may_call_before_its_runner_has_said_so(store: Store) -> None:
    """It was told that its key is of an older place, and died of it."""
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    first = await session.sessions.take_place("t1", 15)
    assert first is not None
    await session.sessions.leave_place(first, None)
    second = await session.sessions.take_place("t2", 15)
    assert second is not None
    await store.connection.redis.hdel(f"rp:rollout:{session.uid}:session", "lease")
    await store.connection.redis.hset(f"rp:rollout:{session.uid}:session", "place", 1)
    assert (await session.take(place=2)).outcome == "taken"
    assert await session.sessions.hold_place(second, 15)
    assert (await session.take(place=1)).outcome == "place"


async def test_a_session_that_waits_for_its_grade_takes_no_call_and_needs_no_program(store: Store) -> None:
    """It ended by a limit while a call waited. Its group's other programs may need the runner meanwhile."""
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    place = await session.sessions.take_place("t1", 15)
    assert place is not None
    taken = await session.take()
    await KeptRollouts(store).begin(session.claim, result_of(session.claim), seconds=60, group=None, attachments=b"")
    assert (await session.sessions.look_after(session.uid, taken)).outcome == "over"
    assert (await session.take("other")).outcome == "over"
    assert not await session.sessions.hold_place(place, 15)


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [({"max_calls": 1}, "calls"), ({"max_calls_at_once": 1}, "at_once"), ({"max_mb": 0.0003}, "bytes")],
)
async def test_limits_hold_for_new_calls_and_not_for_repetitions(
    store: Store, limit: dict[str, Any], outcome: str
) -> None:
    session = await opened(store, external=True, **limit)
    assert (await session.take()).n == 1
    assert (await session.take("x" * 300, holder=f"{DOOR} s1 2")).outcome == outcome
    assert (await session.take(holder=f"{DOOR} s1 3", repeats=True)).n == 1


async def test_what_is_kept_of_a_session_goes_with_its_batch(session: Session) -> None:
    await session.take()
    await session.answer(1)
    redis, uid = session.store.connection.redis, session.uid
    await session.store.rollouts.finish(session.claim, result_of(session.claim))
    kept = [part for part in Harness.rollout_parts if await redis.exists(f"rp:rollout:{uid}:{part}")]
    assert kept == ["session"]
    # Nothing of single calls, of which there may be thousands.
    assert await redis.hgetall(f"rp:rollout:{uid}:session") == {b"calls": b"1"}


async def test_calls_whose_rollout_ends_while_they_are_read_are_lost_with_the_claim(session: Session) -> None:
    await session.take()
    await session.store.connection.redis.delete(f"rp:rollout:{session.uid}:said")
    with pytest.raises(ClaimLost):
        await session.sessions.read(session.claim, None, {})


@pytest.mark.parametrize("counts", ["deaths", "losses"])
async def test_a_runner_that_leaves_after_the_rollout_s_end_wants_no_place(store: Store, counts: Any) -> None:
    """The last runner stops, or the program dies, in the moment of a cancel: nobody was left to take the place off."""
    session = await opened(store, command=["x"])
    await session.sessions.want_place(session.claim, reuse=True)
    place = await session.sessions.take_place("t1", 15)
    assert place is not None
    await store.rollouts.cancel(session.uid)
    assert await session.sessions.leave_place(place, None, counts)
    assert not await store.connection.redis.exists("rp:places:wanted", "rp:places:held")
