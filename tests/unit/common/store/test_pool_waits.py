"""Queued rollouts say what the pool lacks; nothing is written for it."""

from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from tests.support.batches import OWNER, beat, claim, submit

from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.store import Store, pool_waits
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.workers import Workers

TOKENIZER = "rolloutpool/tiny"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look reads again."""
    monkeypatch.setattr(pool_waits, "LOOK_SECONDS", 0.0)


async def announce(store: Store, worker_id: str, slots: int = 2) -> None:
    await store.workers.announce(worker_id, Announcement(host="h", pid=1, slots=slots))


async def waits(store: Store, uid: str) -> list[tuple[WaitsFor, str, int]]:
    """What the batch says; the rollout says the first of it."""
    status = await store.batches.status(uid.rpartition("-")[0], OWNER)
    view = await store.rollouts.view(uid, OWNER)
    assert status is not None
    assert view is not None
    first = status.waiting[0].waits_for if status.waiting else None
    assert (view.waiting.waits_for if view.waiting else None) == first
    return [(found.waits_for, found.message, found.rollouts) for found in status.waiting]


async def test_without_workers_all_of_it_waits_for_one(store: Store) -> None:
    uid, _ = await submit(store, 2)
    ((waits_for, message, rollouts),) = await waits(store, uid)
    assert (waits_for, rollouts) == (WaitsFor.WORKER, 2)
    assert message == "no worker is alive; start one with `rolloutpool worker`"
    await announce(store, "w")
    assert await waits(store, uid) == []


async def test_workers_that_shut_down_take_nothing(store: Store) -> None:
    uid = (await submit(store))[0]
    await announce(store, "w")
    await beat(store, "w", running=2, tokenizers={}, draining=True)
    ((waits_for, message, _),) = await waits(store, uid)
    assert waits_for is WaitsFor.WORKER
    assert message.startswith("all workers shut down")


async def test_a_tokenizer_that_no_worker_has_begun_to_load_waits_for_a_place(store: Store) -> None:
    uid = (await submit(store, shared={"tokenizer_name": TOKENIZER}))[0]
    await announce(store, "w")
    await beat(store, "w", running=0, tokenizers={}, loading=["slow"], unloaded=["another"])
    assert await waits(store, uid) == []
    await beat(store, "w", running=0, tokenizers={}, loading=["slow"], unloaded=["another", TOKENIZER])
    said = f"{TOKENIZER} waits for a place to be loaded: others are loaded before"
    assert await waits(store, uid) == [(WaitsFor.TOKENIZER, said, 1)]
    # As soon as one of them loads it, this is what it waits for.
    await announce(store, "beside")
    await beat(store, "beside", running=0, tokenizers={}, loading=[TOKENIZER])
    assert await waits(store, uid) == [(WaitsFor.TOKENIZER, f"1 of 2 workers load {TOKENIZER}", 1)]


async def test_slots_that_are_all_taken_are_counted(store: Store) -> None:
    uid = (await submit(store))[0]
    for name in ("w", "beside"):
        await announce(store, name)
        await beat(store, name, running=2, tokenizers={})
    assert await waits(store, uid) == [(WaitsFor.SLOT, "all 4 slots of 2 workers are taken", 1)]
    await beat(store, "w", running=1, tokenizers={})
    assert await waits(store, uid) == []


async def test_what_runs_does_not_wait_for_the_pool(store: Store) -> None:
    uid = (await submit(store))[0]
    await claim(store, uid)
    assert await waits(store, uid) == []


async def test_nothing_is_written_and_little_is_read(
    store: Store, raw: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_waits, "LOOK_SECONDS", 60.0)
    uid = (await submit(store))[0]
    before = {key: await raw.dump(key) for key in await raw.keys("*")}
    reads = 0
    listed = store.workers.listed

    async def counted(*_: object) -> Any:
        nonlocal reads
        reads += 1
        return await listed()

    monkeypatch.setattr(Workers, "listed", counted)
    for _ in range(10):
        assert await waits(store, uid)
    assert {key: await raw.dump(key) for key in await raw.keys("*")} == before
    assert reads == 2  # one for batches, one for rollouts
