"""Waiting for a condition with a deadline, instead of sleeping and hoping.

`eventually` is for tests that run in a thread of their own, `until` and `until_true` for tests inside an event loop.
All look every 20 ms, return as soon as the condition holds, and fail the test when the deadline passes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL = 0.02


def eventually(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Waits until what the condition returns counts as true; fails the test after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        time.sleep(INTERVAL)


async def until(look: Callable[[], Awaitable[T | None]], seconds: float = 20.0) -> T:
    """Waits until what `look` finds counts as true, and returns it; fails the test after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        await asyncio.sleep(INTERVAL)
    return found


async def until_true(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until a condition holds that is seen without awaiting anything; as `until` otherwise."""

    async def look() -> bool:
        return bool(condition())

    await until(look, seconds)
