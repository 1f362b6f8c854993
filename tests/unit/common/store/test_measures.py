"""Sums of all processes: each report once, a limited number of endpoints, and processes that go."""

import asyncio

import pytest

from rolloutpool_common.store import Store, measures
from rolloutpool_common.store.measures import MOST_ENDPOINTS

STANDING = {"component": "worker"}


async def test_reports_of_all_processes_add_up(store: Store, other: Store) -> None:
    await store.measures.report("a", 1, STANDING, [("", "x|1", 2), ("http://t", "y", 3)])
    await other.measures.report("b", 1, STANDING, [("", "x|1", 5), ("http://t", "y", 7), ("http://u", "y", 1)])
    await store.measures.report("a", 2, STANDING, [("", "x|1", 1)])
    measured = await store.measures.read()
    assert measured.sums == {"": {"x|1": 8}, "other": {}, "http://t": {"y": 10}, "http://u": {"y": 1}}
    assert measured.standings == [STANDING, STANDING]


async def test_a_report_that_comes_twice_counts_once(store: Store) -> None:
    for number in (1, 1, 2, 2, 1):
        await store.measures.report("a", number, STANDING, [("", "x", 1)])
    assert (await store.measures.read()).sums[""] == {"x": 2}


async def test_two_thousand_endpoints_become_a_few(store: Store) -> None:
    rows = [(f"http://{number}", "y", 1) for number in range(2_000)]
    await store.measures.report("a", 1, STANDING, rows)
    sums = (await store.measures.read()).sums
    assert len(sums) == MOST_ENDPOINTS + 2
    assert sums["other"] == {"y": 2_000 - MOST_ENDPOINTS}
    # Those that have sums keep them.
    await store.measures.report("a", 2, STANDING, [("http://3", "y", 1)])
    assert (await store.measures.read()).sums["http://3"] == {"y": 2}


async def test_an_endpoint_that_nobody_calls_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "MOST_ENDPOINTS", 1)
    await store.measures.report("a", 1, STANDING, [("http://old", "y", 1)])
    await store.measures.report("a", 2, STANDING, [("http://new", "y", 1)])
    assert set((await store.measures.read()).sums) == {"", "other", "http://old"}
    monkeypatch.setattr(measures, "IDLE_SECONDS", -1)
    await store.measures.report("a", 3, STANDING, [("http://new", "y", 1)])
    assert (await store.measures.read()).sums == {"": {}, "other": {"y": 1}, "http://new": {"y": 1}}


async def test_a_process_that_reports_no_more_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "GONE_SECONDS", 0.02)
    await store.measures.report("a", 1, {"component": "gone"}, [("", "x", 1)])
    await asyncio.sleep(0.05)
    # Else a busy machine would forget this one too before it is read.
    monkeypatch.setattr(measures, "GONE_SECONDS", 60.0)
    await store.measures.report("b", 1, STANDING, [])
    measured = await store.measures.read()
    assert measured.standings == [STANDING]
    assert measured.sums[""] == {"x": 1}
    await store.measures.leave("b")
    assert (await store.measures.read()).standings == []
