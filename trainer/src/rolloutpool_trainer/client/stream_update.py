"""What a stream needs to update weights: an endpoint that can be paused, and a call that may block."""

import asyncio
from collections.abc import Callable
from typing import Protocol


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
