"""Rollouts stop at borders once a drain has begun, and a pause ends with it."""

import asyncio

import pytest

from rolloutpool_worker.drain import Drain, Drained


async def test_a_border_is_open_until_the_drain_begins() -> None:
    drain = Drain()
    drain.check()
    await drain.pause(0.0)
    drain.begin()
    assert drain.begun
    with pytest.raises(Drained):
        drain.check()
    with pytest.raises(Drained):
        await drain.pause(60.0)


async def test_a_pause_ends_when_the_drain_begins() -> None:
    drain = Drain()
    pause = asyncio.create_task(drain.pause(60.0))
    await asyncio.sleep(0)
    drain.begin()
    with pytest.raises(Drained):
        async with asyncio.timeout(10):
            await pause
