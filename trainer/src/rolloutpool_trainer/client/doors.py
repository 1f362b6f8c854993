"""What batches and streams need of a client, for asyncio or one that blocks, and of an endpoint."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rolloutpool_trainer.client.calls import Call

T = TypeVar("T")


class AsyncDoor(Protocol):
    """The client of a pool, for asyncio."""

    async def ask(self, call: Call[T]) -> T:
        """Sends a call, and returns its answer."""
        ...

    async def submit(self, *args: Any, **options: Any) -> Any:
        """Submits a batch."""
        ...


class SyncDoor(Protocol):
    """The client of a pool that blocks."""

    def ask(self, call: Call[T]) -> T:
        """Sends a call, and returns its answer."""
        ...

    def submit(self, *args: Any, **options: Any) -> Any:
        """Submits a batch."""
        ...


class Pausable(Protocol):
    """An endpoint whose sampling can be held, as `CallbackApp`."""

    def pause(self) -> None:
        """Waits until nothing is being sampled, and holds what comes then."""
        ...

    def resume(self, policy_version: str | None = None) -> None:
        """Goes on, with weights of this name."""
        ...


async def call_aio(function: Callable[[], None]) -> None:
    """Calls what may block, beside the event loop, because it may wait for something on that loop."""
    await asyncio.to_thread(function)


def call_sync(function: Callable[[], None]) -> None:
    """Calls what may block."""
    function()
