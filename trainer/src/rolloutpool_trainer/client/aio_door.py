"""Holds what a batch needs of its client, for asyncio. `sync_door.py` is generated from this file (`make generate`)."""

from typing import Any, Protocol, TypeVar

from rolloutpool_trainer.client.calls import Call

T = TypeVar("T")


class AsyncDoor(Protocol):
    """The client of a pool."""

    async def ask(self, call: Call[T]) -> T:
        """Sends a call, and returns its answer."""
        ...

    async def submit(self, *args: Any, **options: Any) -> Any:
        """Submits a batch."""
        ...
