"""A worker starts one process at a time for suspects, and passes its own signals on to it.

A shell script stands for the child: what a real one does inside is in tests/integration/worker/test_crash.py.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.batches import claim
from tests.support.inside_worker import InsideWorker
from tests.support.waiting import until_true

from rolloutpool_worker.process import isolation
from rolloutpool_worker.process.isolation import IsolatedRuns


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Has the next isolated process run this script in this folder."""
    file = folder / "child"
    file.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setattr(isolation, "PAUSE_SECONDS", 0.0)


async def suspect(inside: InsideWorker) -> str:
    """A rollout whose two workers have died."""
    (uid,) = await inside.submit({})
    store = inside.services.store
    for victim in ("first", "second"):
        await claim(store, uid, victim)
        await store.reconciliation.take_back(uid, victim)
    return uid


@contextlib.asynccontextmanager
async def running(inside: InsideWorker) -> AsyncIterator[IsolatedRuns]:
    """A worker that starts processes until the block ends."""
    runs = IsolatedRuns(inside.services)
    task = asyncio.create_task(runs.run())
    try:
        yield runs
    finally:
        inside.services.drain.begin()
        async with asyncio.timeout(20):
            await task


async def test_a_beat_that_tells_of_suspects_starts_one_child_at_a_time(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child(monkeypatch, tmp_path, 'echo "$@" >> started; until [ -e go ]; do sleep 0.05; done; exit 7')
    await suspect(inside)
    with caplog.at_level(logging.WARNING):
        async with running(inside):
            inside.services.suspects_wait.set()
            await until_true((tmp_path / "started").exists)
            # The next beat says so too, while the child runs.
            inside.services.suspects_wait.set()
            await asyncio.sleep(0.1)
            assert len((tmp_path / "started").read_text().splitlines()) == 1
            (tmp_path / "go").touch()
            await until_true(lambda: "ended: exit:7" in caplog.text)
    arguments = (tmp_path / "started").read_text().split()
    assert arguments[:3] == ["-m", "rolloutpool_worker", "--isolated"]
    assert arguments[4:6] == [inside.services.worker_id, "--worker-id"]
    # The reconciler learns how the child ended from its parent.
    redis = inside.services.store.rollouts._redis
    assert await redis.hget("rp:obituaries", arguments[6]) == b"exit:7"


async def test_without_suspects_no_child_is_started(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, "touch begun")
    async with running(inside):
        inside.services.suspects_wait.set()
        await asyncio.sleep(0.1)
    assert not (tmp_path / "begun").exists()


async def test_the_drain_reaches_the_child_and_waits_for_it(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(
        monkeypatch, tmp_path, "trap 'sleep 0.3; touch drained; exit 0' TERM\ntouch begun\nwhile :; do sleep 0.05; done"
    )
    await suspect(inside)
    async with running(inside) as runs:
        inside.services.suspects_wait.set()
        await until_true((tmp_path / "begun").exists)
        inside.services.drain.begin()
        async with asyncio.timeout(20):
            await runs.ended()
        assert (tmp_path / "drained").exists()


async def test_a_worker_that_drains_starts_no_child(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, "touch begun")
    await suspect(inside)
    inside.services.drain.begin()
    inside.services.suspects_wait.set()
    async with running(inside):
        pass
    assert not (tmp_path / "begun").exists()
