"""What a record waits for: the worker, where its loop is busy with others, and Redis, where it has nothing to do."""

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.batches import claim, submit
from tests.support.journals import turn_record
from tests.unit.common.store.test_line import Opened

from rolloutpool_common.store import Store, StoreUnavailable
from rolloutpool_common.store import line as line_module
from rolloutpool_common.store.write_waits import ThreadStat


async def test_a_loop_that_is_kept_busy_is_waited_for(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    ended = asyncio.Event()

    async def others() -> None:
        while not ended.is_set():
            until = time.process_time() + 0.02
            while time.process_time() < until:
                pass
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    await asyncio.sleep(0)
    begun = time.perf_counter()
    await store.rollouts.journal(held, [turn_record(1)], turns=1)
    took = time.perf_counter() - begun
    ended.set()
    await busy
    assert held.waits.worker >= 0.02
    assert held.waits.worker > 5 * held.waits.redis
    # All of it is a wait of one of the two kinds, and none of it the rollout's own work.
    assert took - 0.01 < held.waits.worker + held.waits.redis <= took


async def test_a_note_before_the_first_call_waits_too(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    await store.model_calls.note(held)
    assert held.waits.worker + held.waits.redis > 0


async def test_what_redis_refused_was_a_wait_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)

    def refused(*_: object) -> asyncio.Future[object]:
        call = Opened().call()
        call.begun = time.perf_counter() - 3
        call.set_exception(StoreUnavailable())
        return call

    monkeypatch.setattr(store.rollouts._connection, "joined", refused)
    with pytest.raises(StoreUnavailable):
        await store.rollouts.journal(held, [turn_record(1)], turns=1)
    assert held.waits.redis == pytest.approx(3, abs=1)
    assert held.waits.worker == 0


@pytest.mark.parametrize(
    ("wall", "wanted", "idle"),
    [(0.5, 0.0, 0.5), (0.5, 0.4, 0.1), (0.5, 0.51, 0.0), (0.0005, 0.0004, 0.0005)],
    ids=["nothing to do", "partly busy", "busy", "not worth a look"],
)
async def test_a_line_was_idle_while_its_thread_had_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, wall: float, wanted: float, idle: float
) -> None:
    clock = SimpleNamespace(wall=100.0, ran=7_000_000_000)
    monkeypatch.setattr(line_module, "time", SimpleNamespace(perf_counter=lambda: clock.wall))
    # Half of what the thread wanted it got.
    stat = SimpleNamespace(pread=lambda *_: b"%d %d 12\n" % (clock.ran, clock.ran))
    monkeypatch.setattr(line_module, "os", stat)
    opened = Opened()
    opened.line._thread = cast(ThreadStat, SimpleNamespace(fd=0))
    opened.send(1)
    clock.wall, clock.ran = clock.wall + wall, clock.ran + round(wanted * 5e8)
    opened.line.data_received(b":1\r\n")
    # Nobody waits for an answer any more.
    clock.wall += 60
    opened.send(1)
    assert opened.idle.seconds == pytest.approx(idle)
