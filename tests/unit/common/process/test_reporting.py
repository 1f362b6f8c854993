"""A process's reports arrive once, also where Redis answers late or never."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.fake_store import fake_store

from rolloutpool_common.process.build import commit
from rolloutpool_common.process.metrics import QUEUE_SECONDS, take_rows
from rolloutpool_common.process.reporting import Reporter
from rolloutpool_common.store import StoreUnavailable
from rolloutpool_common.store.measures import MeasureRow, PoolMeasures

FIELD = "rollout_queue_seconds|high|3"


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    """Other tests of this process observe the same metrics."""
    take_rows()
    yield
    take_rows()


class Unreliable(PoolMeasures):
    """Every other report is carried out, and its answer is lost."""

    calls = 0
    fails = True

    async def report(self, process: str, number: int, standing: Any, rows: Any) -> None:
        self.calls += 1
        await super().report(process, number, standing, rows)
        if self.fails and self.calls % 2:
            raise StoreUnavailable("lost")


async def test_a_report_whose_answer_was_lost_counts_once() -> None:
    store = fake_store()
    measures = Unreliable(store.measures._connection)
    reporter = Reporter(measures, component="worker", process="w", version="1")
    for _ in range(4):
        QUEUE_SECONDS.observe(0.2, "high")
        with pytest.raises(StoreUnavailable):
            await reporter.report()
        # It waits for the next report, and is not part of the one that is sent again.
        QUEUE_SECONDS.observe(0.2, "high")
        await reporter.report()
    measures.fails = False
    await reporter.report()
    measured = await store.measures.read()
    assert measured.sums[""][FIELD] == 8
    await store.close()


async def test_a_process_says_what_it_is_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpool_common.process.reporting.TICK_SECONDS", 0.001)
    store = fake_store()
    reporter = Reporter(store.measures, component="worker", process="w", version="1.2")
    reporter.start()
    await asyncio.sleep(0.1)
    await reporter.report()
    measured = await store.measures.read()
    (standing,) = measured.standings
    assert (standing["component"], standing["version"], standing["commit"]) == ("worker", "1.2", commit())
    assert standing["resident_bytes"] > 10_000_000
    assert 0 < standing["open_fds"] <= len(os.listdir("/proc/self/fd")) + 5
    assert measured.sums[""]["process_cpu_seconds|worker"] > 0
    assert sum(n for field, n in measured.sums[""].items() if field.startswith("event_loop_lag_seconds|worker|")) > 0
    await reporter.stop()
    after = await store.measures.read()
    assert after.standings == []
    # The sums stay.
    assert after.sums[""]["process_cpu_seconds|worker"] >= measured.sums[""]["process_cpu_seconds|worker"]
    await store.close()


async def test_what_cannot_be_sent_stays_small() -> None:
    class Down(PoolMeasures):
        rows: tuple[MeasureRow, ...] = ()

        async def report(self, process: str, number: int, standing: Any, rows: Any) -> None:
            self.rows = tuple(rows)
            raise StoreUnavailable("down")

    store = fake_store()
    measures = Down(store.measures._connection)
    reporter = Reporter(measures, component="worker", process="w", version="1")
    for _ in range(50):
        QUEUE_SECONDS.observe(0.2, "high")
        with pytest.raises(StoreUnavailable):
            await reporter.report()
    assert ("", FIELD, 1) in measures.rows
    assert ("", FIELD, 49) in take_rows()
    await store.close()
