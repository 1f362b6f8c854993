"""Waiting for a condition with a deadline, inside an event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], seconds: float = 20.0) -> T:
    """What `look` returns as soon as it is something that counts as true; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        await asyncio.sleep(0.02)
    return found
