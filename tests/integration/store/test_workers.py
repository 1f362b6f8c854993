"""A worker is known from its announcement to its leave or burial, with what it last said of itself."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from tests.support.batches import beat, claim, submit

from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.protocol.workers import WorkerState
from rolloutpool_common.store import Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.lifeline import Lifeline

ABOUT = Announcement(
    host="node-1",
    pid=42,
    slots=8,
    tools=[ToolDefinition(function=ToolFunction(name="add"))],
    agents=["tool_calls"],
    termination_strategies=["task_completion"],
    versions={"python": "3"},
)


async def announce(store: Store, worker: str) -> None:
    await store.workers.announce(worker, ABOUT.model_copy(update={"started_at": time.time()}))


async def test_what_is_announced_is_known_and_beats_update_it(store: Store) -> None:
    await announce(store, "w")
    (info,) = await store.workers.known()
    assert (info.worker_id, info.host, info.pid, info.slots, info.running) == ("w", "node-1", 42, 8, 0)
    assert info.tools == ["add"]
    assert info.alive
    assert 0 <= info.last_beat_age_s < 5
    assert (await beat(store, "w", running=3, tokenizers={"t": {"sha": "x"}}))[:2] == (True, [])
    (info,) = await store.workers.known()
    assert (info.running, info.tokenizers) == (3, {"t": {"sha": "x"}})


async def test_workers_come_in_the_order_of_their_start(store: Store) -> None:
    for worker in ("b", "c", "a"):
        await announce(store, worker)
    assert [info.worker_id for info in await store.workers.known()] == ["b", "c", "a"]


async def test_a_silent_worker_is_known_as_not_alive(store: Store, raw: Redis) -> None:
    await announce(store, "w")
    now, _ = await raw.time()
    await raw.zadd("rp:workers", {"w": (now - 10) * 1000})
    (info,) = await store.workers.known()
    assert (info.alive, info.state) == (False, WorkerState.SILENT)
    assert info.last_beat_age_s == pytest.approx(10, abs=2)


async def test_a_worker_that_is_busy_in_one_long_call_is_shown_as_stalled(
    store: Store, raw: Redis, redis_url: str
) -> None:
    lifeline = Lifeline(redis_url, "w")
    await asyncio.to_thread(lifeline.start)
    await store.workers.announce("w", ABOUT, lifeline=lifeline.seen)
    (info,) = await store.workers.known()
    assert (info.alive, info.state, info.lifeline) == (True, WorkerState.ALIVE, True)
    now, _ = await raw.time()
    await raw.zadd("rp:workers", {"w": (now - 10) * 1000})
    (info,) = await store.workers.known()
    assert (info.alive, info.state) == (True, WorkerState.STALLED)
    await asyncio.to_thread(lifeline.stop)


async def test_a_beat_of_an_unknown_worker_says_so_and_shows_nobody(store: Store) -> None:
    assert (await beat(store, "w", running=0, tokenizers={}))[:2] == (False, [])
    assert await store.workers.known() == []


async def test_a_worker_that_left_leaves_no_key(store: Store, raw: Redis) -> None:
    await announce(store, "w")
    await store.workers.leave("w")
    assert sorted([key async for key in raw.scan_iter("*")]) == ["rp:epoch", "rp:schema"]


async def test_a_worker_names_its_parent_and_says_whether_its_lifeline_is_seen(store: Store, raw: Redis) -> None:
    await store.workers.announce("w", ABOUT, supervisor="s", lifeline=True)
    assert await raw.hmget("rp:worker:w", "host", "supervisor", "life") == ["node-1", "s", "1"]
    await beat(store, "w", running=0, tokenizers={}, lifeline=False)
    assert await raw.hmget("rp:worker:w", "supervisor", "life") == ["s", "0"]


async def test_the_order_to_stop_comes_with_the_next_beat(store: Store, other: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid, "w")
    assert await store.workers.tokens("w") == {uid: held.token}
    await other.rollouts.cancel(uid)
    assert (await beat(store, "w", running=1, tokenizers={}))[1] == [held.token]
    assert await store.workers.claims("w") == []


async def test_a_dead_worker_is_not_forgotten_while_it_has_claims(store: Store) -> None:
    (uid,) = await submit(store)
    await announce(store, "w")
    held = await claim(store, uid, "w")
    await store.workers.condemn("w")
    await store.workers.deregister("w")
    assert [worker.worker_id for worker in await store.workers.known()] == ["w"]
    await store.rollouts.release(held, clean=True)
    await store.workers.deregister("w")
    assert await store.workers.known() == []


async def test_one_that_has_beaten_since_the_look_is_not_declared_dead(store: Store, raw: Redis) -> None:
    await announce(store, "w")
    seen = await raw.zscore("rp:workers", "w") or 0.0
    await raw.zadd("rp:workers", {"w": seen + 1})
    assert not await store.workers.condemn("w", b"%.0f" % seen)
    assert await store.workers.condemn("w", b"%.0f" % (seen + 1))
