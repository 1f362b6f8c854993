"""Says which batches of a stream have to be asked for now, so that their leases go on while another batch is read."""

import time
from collections.abc import Callable

_PARTS = 4
"""A lease is renewed so often before it would be over, because a request may fail or come late."""


class LeaseRenewal:
    """The batches of one stream that are open."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds` is how long a lease lasts; None where there is none. `clock` returns seconds."""
        self.open: dict[str, None] = {}
        """Their ids, in order of submission."""
        self._every = None if seconds is None else seconds / _PARTS
        self._clock = clock
        self._due_at = clock() + (self._every or 0.0)

    def due(self) -> list[str]:
        """Returns the ids of batches to be asked for now; nearly always none."""
        now = self._clock()
        if self._every is None or now < self._due_at:
            return []
        self._due_at = now + self._every
        return list(self.open)
