"""A host of workers, which is hurt as a whole or process by process."""

from dataclasses import dataclass

from tests.chaos import sockets
from tests.chaos.link import Link
from tests.chaos.process import Process

__all__ = ["Host"]


@dataclass(frozen=True)
class Host:
    """One machine with workers, as far as the pool can tell."""

    root: Process
    """The parent of its workers."""
    link: Link
    """To Redis."""

    @property
    def name(self) -> str:
        """Of its link and of its first process."""
        return self.root.name

    def pids(self) -> list[int]:
        """Of all its processes that live."""
        return [] if self.root.pid is None else sockets.family(self.root.pid)
