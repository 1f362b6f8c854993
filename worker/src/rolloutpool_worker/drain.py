"""Drain: on SIGTERM rollouts stop at their next border, and go back to the queue with their journal.

A border is where nothing is in flight: before a model call, before tools run. So a drain makes no turn ambiguous,
as long as the calls in flight come back within the drain time. Asked a second time, it waits for none of them.
"""

import asyncio
from contextlib import suppress

from rolloutpool_common.errors import RolloutPoolError

__all__ = ["Drain", "Drained"]


class Drained(RolloutPoolError):
    """This worker is shutting down; the rollout goes on elsewhere."""


class Drain:
    """Whether this process is shutting down."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether new work is refused."""
        return self._event.is_set()

    def begin(self) -> None:
        """From now on rollouts stop at their next border."""
        self._event.set()

    def hurry(self) -> None:
        """From now on nothing is awaited."""
        self._hurried.set()

    async def wait(self) -> None:
        """Returns when the process shuts down."""
        await self._event.wait()

    async def wait_hurried(self) -> None:
        """Returns when the process may not even wait for what is in flight."""
        await self._hurried.wait()

    async def pause(self, seconds: float) -> None:
        """Waits at a border; raises `Drained` as soon as the process shuts down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self.check()

    def check(self) -> None:
        """A border; raises `Drained` when the process is shutting down."""
        if self._event.is_set():
            raise Drained
