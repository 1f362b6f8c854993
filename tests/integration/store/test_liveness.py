"""Real processes and a real Redis: who has ended is declared dead, and nobody else is, whatever stands still.

The workers are light ones (`tests.support.light_worker`). With beats alone, dead after 5 s of silence, all tests but
the first, the second and the last named a living worker dead. The long waits of the acceptance runs are those of
issue 11; the short ones are longer than 5 s too.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import redis.asyncio
from tests.chaos.link import Link
from tests.support.batches import announce, claim, declare_dead, submit
from tests.support.durable_redis import durable_redis
from tests.support.forked_worker import ForkedWorker
from tests.support.light_worker import start_light_worker
from tests.support.waiting import until, until_true

from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.liveness import LOOK_SECONDS, REST_SECONDS, RESTARTED_SECONDS
from rolloutpool_common.store.reconciliation import Removal
from rolloutpool_common.store.verdicts import STALLED_SECONDS

NAMES = ("a", "b", "c")


class Watcher:
    """Looks four times a second, as the API's reconciler does, and notes who is declared dead."""

    def __init__(self, store: Store, raw: redis.asyncio.Redis, stalled_s: float) -> None:
        self.removals: list[Removal] = []
        self._watch = store.watch(stalled_s=stalled_s, on_removed=self.removals.append)
        self._raw = raw
        self.deaths: dict[str, float] = {}
        """Worker -> this process's clock when it was declared dead."""

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            with suppress(StoreError, redis.exceptions.RedisError):
                await self._watch.look()
                for worker in await self._raw.zrange("rp:condemned", 0, -1):
                    self.deaths.setdefault(str(worker), time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Ends."""
        await self._watch.close()


@asynccontextmanager
async def watching(url: str, stalled_s: float = STALLED_SECONDS) -> AsyncIterator[tuple[Watcher, Store]]:
    """A watcher at work."""
    store, raw = Store.open(url), redis.asyncio.Redis.from_url(url, decode_responses=True)
    watcher = Watcher(store, raw, stalled_s)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher, store
    finally:
        failure = task.exception() if task.done() else None
        task.cancel()
        await watcher.close()
        await store.close()
        await raw.aclose()
        assert failure is None, failure


@contextmanager
def living(url: str, names: tuple[str, ...] = NAMES, **environment: str) -> Iterator[dict[str, ForkedWorker]]:
    """Light workers, which are killed in the end."""
    workers = {name: start_light_worker(url, name, **environment) for name in names}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


async def listed(store: Store, count: int = len(NAMES)) -> None:
    """Returns when all are known and seen, and the first looks are over."""

    async def all_there() -> bool:
        known = await store.workers.known()
        return len(known) == count and all(worker.lifeline for worker in known)

    await until(all_there, 30)
    await asyncio.sleep(1)


@asynccontextmanager
async def watched(
    url: str, *, workers_url: str | None = None, stalled_s: float = STALLED_SECONDS, **environment: str
) -> AsyncIterator[tuple[dict[str, ForkedWorker], Watcher, Store]]:
    """Light workers whom a watcher has seen; they may reach Redis by another URL."""
    with living(workers_url or url, NAMES, **environment) as workers:
        async with watching(url, stalled_s) as (watcher, store):
            await listed(store)
            yield workers, watcher, store


LASTING = [6.5, pytest.param(15.0, marks=pytest.mark.slow)]


async def test_a_killed_worker_is_noticed_in_two_seconds(redis_url: str) -> None:
    """Under load a look may come late; alone it takes 1.5 to 2 s."""
    async with watched(redis_url) as (workers, watcher, store):
        (uid,) = await submit(store)
        await claim(store, uid, "b")
        killed = time.monotonic()
        workers["b"].kill()
        await until_true(lambda: watcher.removals == [Removal(requeued=1)], 15)
        assert set(watcher.deaths) == {"b"}
        assert 1.5 <= watcher.deaths["b"] - killed < 3.5
        assert (await claim(store, uid, "a")).crashes == 1


async def test_a_reported_end_needs_no_further_evidence(store: Store) -> None:
    uids = await submit(store, 3)
    ends = [ProcessEnd.of(-11), ProcessEnd.of(-9), ProcessEnd.of(0, told_to_stop=True)]
    for uid, name, end, crashes in zip(uids, NAMES, ends, (1, 0, 0), strict=True):
        await announce(store, name)
        await claim(store, uid, name)
        assert await declare_dead(store, name, end) == Removal(requeued=1)
        assert (await claim(store, uid, "other")).crashes == crashes


async def test_the_report_of_a_worker_that_left_or_never_spoke_is_no_loss(store: Store, redis_url: str) -> None:
    await announce(store, "left")
    await store.workers.leave("left")
    assert await declare_dead(store, "left", ProcessEnd.of(0, told_to_stop=True)) == Removal()
    # It would count among the isolated ones, by whose number suspects are divided over workers.
    await store.connection.redis.sadd("rp:isolated", "never spoke")
    assert await declare_dead(store, "never spoke", ProcessEnd.of(1)) == Removal()
    assert not await store.connection.redis.exists("rp:isolated")
    assert (await store.totals.read()).totals == {}
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        assert not await raw.exists("rp:obituaries", "rp:condemned")


@pytest.mark.parametrize("seconds", LASTING)
async def test_stopped_workers_keep_their_lives(redis_url: str, seconds: float) -> None:
    async with watched(redis_url) as (workers, watcher, store):
        for worker in workers.values():
            worker.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        assert {worker.state for worker in await store.workers.known()} == {"stalled"}
        for worker in workers.values():
            worker.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
        assert watcher.deaths == {}
        assert {worker.state for worker in await store.workers.known()} == {"alive"}


@pytest.mark.parametrize("seconds", [6.5, pytest.param(10.0, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_a_worker_that_holds_the_gil_lives(redis_url: str, seconds: float) -> None:
    async with watched(redis_url, HOLD=str(seconds)) as (workers, watcher, _):
        for worker in workers.values():
            worker.send_signal(signal.SIGUSR1)
        await asyncio.sleep(seconds + 2)
        assert watcher.deaths == {}


@pytest.mark.parametrize("seconds", LASTING)
@pytest.mark.slow
async def test_a_silent_redis_is_no_death(redis_url: str, seconds: float) -> None:
    async with watched(redis_url) as (_, watcher, store):
        async with redis.asyncio.Redis.from_url(redis_url) as raw:
            await raw.client_pause(int(seconds * 1000))
        await asyncio.sleep(seconds + 4)
        assert watcher.deaths == {}
        assert len(await store.workers.known()) == len(NAMES)


@pytest.mark.slow
async def test_a_restart_of_redis_ends_only_who_ended() -> None:
    """A worker's lifeline ends with its Redis, so without a supervisor that would tell, its silence has to be long."""
    with durable_redis() as server:
        async with watched(server.url, stalled_s=16) as (workers, watcher, _):
            workers["c"].send_signal(signal.SIGSTOP)
            server.kill()
            workers["b"].kill()
            await asyncio.sleep(1)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(RESTARTED_SECONDS + 2)
            assert watcher.deaths == {}
            workers["c"].send_signal(signal.SIGCONT)
            await until_true(lambda: watcher.deaths, 30)
            await asyncio.sleep(2)
            assert set(watcher.deaths) == {"b"}


@pytest.mark.parametrize("seconds", [3.0, pytest.param(8.0, marks=pytest.mark.slow)])
async def test_a_cut_network_is_no_death(redis_url: str, seconds: float) -> None:
    link = Link("redis", int(redis_url.rpartition(":")[2].partition("/")[0]))
    await link.start()
    async with watched(redis_url, workers_url=f"redis://127.0.0.1:{link.port}/0") as (_, watcher, store):
        link.refuses = True
        link.cut()
        await asyncio.sleep(seconds)
        link.heal()
        await asyncio.sleep(3)
        assert watcher.deaths == {}
        assert {worker.state for worker in await store.workers.known()} == {"alive"}
    await link.close()
    # The loop closes an aborted connection in its next round.
    await asyncio.sleep(0.1)


async def test_a_new_leader_finishes_what_the_last_one_began(store: Store, other: Store, redis_url: str) -> None:
    """The mark outlives the leader, which died before it put the rollouts back."""
    (uid,) = await submit(store)
    await announce(store, "w")
    await claim(store, uid, "w")
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        await raw.zadd("rp:condemned", {"w": (await raw.time())[0] * 1000})
    watch = other.watch()
    assert await watch.look()
    assert await watch.removed() == Removal(requeued=1)
    follower = store.watch()
    assert not await follower.look()
    await follower.close()
    assert await store.workers.known() == []
    await watch.close()


async def test_a_new_leader_judges_by_what_it_has_seen_as_a_follower(
    store: Store, other: Store, redis_url: str
) -> None:
    """With suspicion that began at the lead, a pool whose leader changes often would never find a silent worker."""
    (uid,) = await submit(store)
    await announce(store, "w")
    await claim(store, uid, "w")
    removals: list[Removal] = []
    leader, follower = store.watch(stalled_s=2), other.watch(stalled_s=2, on_removed=removals.append)
    async with redis.asyncio.Redis.from_url(redis_url) as raw, raw.pubsub() as lifeline:
        # It exists, and sends no beat.
        await lifeline.subscribe("rp:life:w")
        began = time.monotonic()
        while time.monotonic() < began + 1.5:
            assert await leader.look()
            assert not await follower.look()
            await asyncio.sleep(LOOK_SECONDS)
        await store.reconciliation.resign()
        while not await raw.zcard("rp:condemned"):
            assert await follower.look()
            assert time.monotonic() < began + 3.25
            await asyncio.sleep(LOOK_SECONDS)
        assert time.monotonic() >= began + 2
    await follower.removed()
    assert removals == [Removal(requeued=1)]
    await leader.close()
    await follower.close()


async def test_looks_are_rare_where_nothing_is_amiss(redis_url: str) -> None:
    store = Store.open(redis_url)
    watch = store.watch(stalled_s=STALLED_SECONDS)
    try:
        assert watch.pause_s == LOOK_SECONDS
        await watch.look()
        assert watch.pause_s == REST_SECONDS
        # Without a lifeline it looks dead.
        await announce(store, "a")
        await watch.look()
        assert watch.pause_s == LOOK_SECONDS
        await store.workers.leave("a")
        await watch.look()
        assert watch.pause_s == REST_SECONDS
        await store.workers.report_end("b", ProcessEnd.of(-9))
        await watch.look()
        assert watch.pause_s == LOOK_SECONDS
    finally:
        await watch.close()
        await store.close()
