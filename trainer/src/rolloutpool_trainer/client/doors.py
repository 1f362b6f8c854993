"""What a batch needs of its client: of one for asyncio, and of one that blocks."""

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
