"""A background task runs until it is stopped, and can be started again."""

import asyncio
import subprocess
import sys

import pytest

from rolloutpool_common.process.background import BackgroundTask


async def test_it_runs_until_it_is_stopped_and_can_be_started_again() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = BackgroundTask("test")
    await task.stop()
    for _ in range(2):
        begun.clear()
        ended.clear()
        task.start(work())
        await begun.wait()
        await task.stop()
        assert ended.is_set()
    await task.stop()


async def test_work_that_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's `wait_for` did, in Python 3.11, and a test waited for its end until pytest gave it up."""
    monkeypatch.setattr("rolloutpool_common.process.background.AGAIN_SECONDS", 0.01)
    cancelled: list[bool] = []

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                if len(cancelled) > 1:
                    raise

    task = BackgroundTask("test")
    task.start(work())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await task.stop()
    assert len(cancelled) == 2


async def test_a_task_that_ends_by_an_error_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        raise ZeroDivisionError

    task = BackgroundTask("test", ended.set)
    task.start(work())
    await ended.wait()
    await task.stop()
    (record,) = caplog.records
    assert "'test'" in record.message
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


PROGRAM = """
import asyncio, signal, sys
from rolloutpool_common.process.background import BackgroundTask

async def fail():
    raise ZeroDivisionError

async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    BackgroundTask("beat").start(fail())
    await told.wait()
    sys.exit(3)

asyncio.run(main())
"""


def test_by_default_the_process_ends_in_its_ordinary_way() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 3
    assert "ZeroDivisionError" in ended.stderr
