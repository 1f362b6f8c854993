"""A task that runs beside everything else in an event loop, from its start until it is stopped."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

__all__ = ["BackgroundTask"]


class BackgroundTask:
    """One background task, which can be started, stopped and started again."""

    def __init__(self, name: str) -> None:
        """`name` is the task's name in asyncio's debugging output."""
        self.name = name
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts the work in the running event loop."""
        self._task = asyncio.create_task(work, name=self.name)

    async def stop(self) -> None:
        """Cancels the work and waits for its end; does nothing where it was never started."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
