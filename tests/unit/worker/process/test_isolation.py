"""A worker starts one process at a time for suspects, and passes its own signals on to it.

A shell script stands for the child: what a real one does inside is in tests/integration/worker/test_crash.py.
"""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from tests.support.batches import OWNER
from tests.support.inside_worker import InsideWorker
from tests.support.waiting import until

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_worker.process.isolation import IsolatedRuns


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Has the next isolated process run this script in this folder."""
    file = folder / "child"
    file.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))


async def exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_it_waits_for_the_child_and_logs_how_it_ended(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child(monkeypatch, tmp_path, 'echo "$@" > arguments; exit 7')
    with caplog.at_level(logging.WARNING):
        assert await IsolatedRuns(inside.services).run("b-0") == "isolated"
    assert (tmp_path / "arguments").read_text().startswith("-m rolloutpool_worker --isolated b-0 ")
    assert "ended: exit:7" in caplog.text
    words = (tmp_path / "arguments").read_text().split()
    assert words[5] == "--worker-id"
    # The reconciler learns how the child ended from its parent.
    redis = inside.services.store.rollouts._redis
    assert await redis.hgetall("rp:obituaries") == {words[6].encode(): b"exit:7"}


async def test_a_second_suspect_is_postponed_and_the_drain_reaches_the_child(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, "trap 'touch drained; exit 0' TERM\ntouch begun\nwhile :; do sleep 0.05; done")
    runs = IsolatedRuns(inside.services)
    first, second = await inside.submit({}, {})
    running = asyncio.create_task(runs.run(first))
    await until(lambda: exists(tmp_path / "begun"))
    assert await runs.run(second) == "postponed"
    view = await inside.services.store.rollouts.view(second, OWNER)
    assert view is not None
    assert view.status is RolloutStatus.QUEUED
    inside.services.drain.begin()
    async with asyncio.timeout(20):
        assert await running == "isolated"
    assert (tmp_path / "drained").exists()


async def test_a_worker_that_drains_starts_no_child(
    inside: InsideWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, "touch begun")
    inside.services.drain.begin()
    (uid,) = await inside.submit({})
    assert await IsolatedRuns(inside.services).run(uid) == "postponed"
    assert not (tmp_path / "begun").exists()
