"""A client that blocks. Generated from `aio_door.py` by `make generate`; edit that file, not this one."""

from typing import Any, Protocol, TypeVar

from rolloutpool_trainer.client.calls import Call

T = TypeVar("T")


class SyncDoor(Protocol):
    """The client of a pool."""

    def ask(self, call: Call[T]) -> T:
        """Sends a call, and returns its answer."""
        ...

    def submit(self, *args: Any, **options: Any) -> Any:
        """Submits a batch."""
        ...
