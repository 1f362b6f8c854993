"""A worker process from its announcement to its leave, as the API sees it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.batches import OWNER, claim, submit
from tests.support.waiting import until

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import TINY, ChatTokenizer, cache, load_tokenizer
from rolloutpool_common.store import Claim, Store
from rolloutpool_worker.process import worker as process
from rolloutpool_worker.process.worker import Surroundings, WorkerProcess
from rolloutpool_worker.rollout.tokenizer_loads import PLACES_OF_ONE
from rolloutpool_worker.settings import WorkerSettings

DRAIN_SECONDS = 0.05


@pytest.fixture
def ended() -> list[str]:
    """How often the worker has ended its process."""
    return []


@pytest.fixture
async def worker(fake_redis: str, store: Store, ended: list[str]) -> AsyncIterator[WorkerProcess]:
    """A worker that has started."""
    settings = WorkerSettings(redis_url=fake_redis, worker_slots=3, drain_seconds=DRAIN_SECONDS)
    made = WorkerProcess(settings, around=Surroundings(end=lambda: ended.append("ended")))
    await made.start()
    beats = asyncio.create_task(carry_beats(made, store))
    yield made
    beats.cancel()
    await made.stop()


async def carry_beats(worker: WorkerProcess, store: Store) -> None:
    """Does the part of the lifeline's thread, which needs a real Redis."""
    while True:
        if (told := worker.pulse.beat()) is not None:
            worker.pulse.hear(await store.connection.script("beat", *told))
        await asyncio.sleep(0.1)


async def running(worker: WorkerProcess, held: Claim) -> asyncio.Task[None]:
    """A rollout that runs in this worker and never ends by itself."""
    begun = asyncio.Event()

    async def verify() -> None:
        return

    async def run() -> None:
        with worker.services.claims.running(held, verify):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await begun.wait()
    return task


async def known(store: Store) -> list[str]:
    return [worker.worker_id for worker in await store.workers.known()]


async def test_it_is_known_from_start_to_stop(fake_redis: str, store: Store) -> None:
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis, worker_slots=3))
    await worker.start()
    (announced,) = await store.workers.known()
    assert (announced.worker_id, announced.slots, announced.alive) == (worker.worker_id, 3, True)
    assert "tool_calls" in announced.agents
    await worker.stop()
    assert await known(store) == []


async def test_one_that_shuts_down_says_so(worker: WorkerProcess, store: Store) -> None:
    async def draining() -> bool:
        (announced,) = await store.workers.known()
        return announced.draining

    assert not await draining()
    await worker.drain()
    await until(draining)


async def test_one_that_shuts_down_before_it_takes_work_is_never_announced(fake_redis: str, store: Store) -> None:
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis))
    await worker.prepare()
    assert await known(store) == []
    await worker.drain()
    await worker.start()
    assert await known(store) == []
    await worker.stop()


async def test_one_that_redis_has_forgotten_announces_itself_again(worker: WorkerProcess, store: Store) -> None:
    await store.workers.leave(worker.worker_id)
    await until(lambda: known(store))
    assert await known(store) == [worker.worker_id]


async def test_one_that_was_declared_dead_drops_what_it_runs_and_ends(
    worker: WorkerProcess, store: Store, ended: list[str]
) -> None:
    (uid,) = await submit(store)
    task = await running(worker, await claim(store, uid, worker.worker_id))
    assert await store.workers.condemn(worker.worker_id)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await task
    assert ended == ["ended"]


async def test_it_says_which_tokenizers_it_loads_and_which_wait_for_a_place(
    worker: WorkerProcess, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, tiny = threading.Event(), load_tokenizer(TINY)

    def load(*_: Any, **__: Any) -> ChatTokenizer:
        go_on.wait(30)
        return tiny

    monkeypatch.setattr(cache, "load_tokenizer", load)
    names = [f"tests/{n}" for n in range(PLACES_OF_ONE + 1)]
    uids = [(await submit(store, shared={"tokenizer_name": name}))[0] for name in names]
    loads = [asyncio.create_task(worker.services.tokenizer_loads.before_claim(uid)) for uid in uids]

    async def told() -> tuple[set[str], list[str]]:
        (announced,) = await store.workers.known()
        return set(announced.loading), announced.unloaded

    async def all_told() -> bool:
        return await told() == (set(names[:-1]), names[-1:])

    async def none_waits() -> bool:
        return await told() == (set(), [])

    try:
        await until(all_told)
    finally:
        go_on.set()
    await asyncio.gather(*loads)
    await until(none_waits)


async def test_a_beat_stops_what_the_api_has_cancelled(worker: WorkerProcess, store: Store) -> None:
    (uid,) = await submit(store)
    task = await running(worker, await claim(store, uid, worker.worker_id))
    await store.rollouts.cancel(uid)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await task


async def test_a_drain_cancels_what_reaches_no_border_in_time(worker: WorkerProcess, store: Store) -> None:
    (uid,) = await submit(store)
    task = await running(worker, await claim(store, uid, worker.worker_id))
    await worker.on_signal()
    assert worker.services.drain.begun
    assert task.cancelled()


async def test_a_second_signal_awaits_nothing(fake_redis: str, store: Store) -> None:
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis, drain_seconds=600))
    (uid,) = await submit(store)
    task = await running(worker, await claim(store, uid, worker.worker_id))
    draining = asyncio.create_task(worker.on_signal())
    await worker.services.drain.wait()
    await worker.on_signal()
    async with asyncio.timeout(20):
        await draining
        await worker.services.drain.wait_hurried()
    assert task.cancelled()
    await worker.stop()


async def test_one_that_still_holds_claims_stays_known_for_the_reconciler(fake_redis: str, store: Store) -> None:
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis))
    await worker.start()
    (uid,) = await submit(store)
    await claim(store, uid, worker.worker_id)
    await worker.stop()
    assert await known(store) == [worker.worker_id]


async def test_after_a_restart_of_redis_what_ended_here_is_given_back(worker: WorkerProcess, store: Store) -> None:
    """Redis has a claim of this worker that is not in its register, and the epoch has risen."""
    (uid,) = await submit(store)
    await claim(store, uid, worker.worker_id)
    await store.connection.redis.hset("rp:epoch", "number", 7)

    async def queued() -> bool:
        view = await store.rollouts.view(uid, OWNER)
        return view is not None and view.status is RolloutStatus.QUEUED

    await until(queued)


async def test_a_claim_that_nothing_here_runs_is_given_back_while_the_worker_lives(
    worker: WorkerProcess, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VERIFY_BEATS", 2)
    stuck, held = await submit(store, 2)
    with worker.services.claims.claiming() as token:
        await store.rollouts.claim(held, worker.worker_id, token=token)
        await claim(store, stuck, worker.worker_id)

        async def queued() -> bool:
            view = await store.rollouts.view(stuck, OWNER)
            return view is not None and view.status is RolloutStatus.QUEUED

        await until(queued)
        assert await store.workers.claims(worker.worker_id) == [held]
        assert await known(store) == [worker.worker_id]


async def test_an_isolated_one_says_so_and_has_few_slots(fake_redis: str, store: Store) -> None:
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis, worker_slots=132), role=WorkerRole.ISOLATED)
    await worker.start()
    (announced,) = await store.workers.known()
    assert (announced.slots, announced.role) == (64, WorkerRole.ISOLATED)
    await worker.stop()


async def test_after_a_restart_of_redis_what_runs_here_is_made_sure_of(worker: WorkerProcess, store: Store) -> None:
    (uid,) = await submit(store)
    verified = asyncio.Event()

    async def verify() -> None:
        verified.set()

    with worker.services.claims.running(await claim(store, uid, worker.worker_id), verify):
        await store.connection.redis.hset("rp:epoch", "number", 7)
        async with asyncio.timeout(20):
            await verified.wait()
