"""Chores go on whatever happens, and say once what happened."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.fake_store import fake_store

from rolloutpool_api import reconciler
from rolloutpool_api.reconciler import PeriodicTask, Reconciler
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.store import StoreUnavailable


class Work:
    """Fails as often as it is told, and tells how often it was called."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.calls: asyncio.Queue[int] = asyncio.Queue()
        self._count = 0

    async def __call__(self) -> None:
        self._count += 1
        self.calls.put_nowait(self._count)
        if self._failures:
            raise self._failures.pop(0)


async def test_a_kick_brings_a_round_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "PERIOD_SECONDS", 3600.0)
    work = Work()
    chore = PeriodicTask("test", work)
    chore.start()
    try:
        async with asyncio.timeout(10):
            assert await work.calls.get() == 1
            chore.wake()
            assert await work.calls.get() == 2
    finally:
        await chore.stop()


async def test_an_outage_is_told_once_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "PERIOD_SECONDS", 0.001)
    work = Work(StoreUnavailable(), StoreUnavailable(), RuntimeError("unforeseen"))
    chore = PeriodicTask("test", work, backoff=Backoff(first_s=0.001, longest_s=0.002, jitter=False))
    with capture_logs() as logs:
        chore.start()
        async with asyncio.timeout(10):
            while await work.calls.get() < 6:
                pass
        await chore.stop()
    assert [entry["event"] for entry in logs] == ["chore fails", "chore works again"]
    assert logs[1]["after_failures"] == 3


async def test_pauses_grow_up_to_a_limit() -> None:
    chore = PeriodicTask("test", Work(*[StoreUnavailable()] * 2000))
    with capture_logs():
        pauses = [await chore._round() for _ in range(2000)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert set(pauses[5:]) == {10.0}


async def test_stopping_twice_or_before_the_start_is_fine() -> None:
    chore = PeriodicTask("test", Work())
    await chore.stop()
    chore.start()
    await chore.stop()
    await chore.stop()


async def test_an_api_whose_loop_is_busy_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "SERVING_SECONDS", 0.05)
    nothing: Any = None
    tested = Reconciler(nothing, nothing, nothing, stalled_s=60.0, new_bytes=0)
    tested._api_loop = asyncio.get_running_loop()

    def look() -> bool:
        return asyncio.run(tested._is_serving())

    assert await asyncio.to_thread(look)
    with ThreadPoolExecutor() as threads:
        # It keeps this loop busy until the other thread has answered.
        assert not threads.submit(look).result()


async def test_the_report_of_an_end_brings_a_look_at_once() -> None:
    store = fake_store()
    nothing: Any = None
    tested = Reconciler(nothing, nothing, store.signals, stalled_s=60.0, new_bytes=0)
    work = Work()
    tested._own_loop = asyncio.get_running_loop()
    tested._look = PeriodicTask("look", work, period_s=lambda: 3600.0)
    tested._look.start()
    await store.signals.start()
    tested._listening.start(tested._listen())
    try:
        async with asyncio.timeout(10):
            assert await work.calls.get() == 1
            # The signals' reader wakes everybody when it has found its place.
            assert await work.calls.get() == 2
            await store.workers.report_end("w1", ProcessEnd.of(-9))
            assert await work.calls.get() == 3
    finally:
        await tested._listening.stop()
        await tested._look.stop()
        await store.close()
