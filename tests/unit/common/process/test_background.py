"""A background task runs until it is stopped, and can be started again."""

import asyncio

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


async def test_stopping_it_tells_what_it_died_of() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    task = BackgroundTask("test")
    task.start(work())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await task.stop()
