"""Breakers: a trainer's port that nobody can connect to costs its own rollouts time, and those of other trainers none.

Each port (`http://host:port`) is in one of three states:

1. Closed, the normal state: calls go through. Each call without a connection is counted, with its reason (refused, no
   answer in time, a name that does not resolve); any answer resets the count.
2. Open, after `FAILURES` calls without a connection in a row: `check` raises `TrainerDown` for `OPEN_SECONDS`. The
   rollouts are deferred, so that they wait in the queue and hold no slot.
3. Half open, when that time is over: `check` lets one call through, and refuses the others for another `OPEN_SECONDS`.
   If the call gets an answer, the port is closed again. If it is refused, the port stays open.

Example: a trainer restarts for a minute. The first five calls are refused; after that one rollout tries every ten
seconds, until the trainer listens again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rolloutpool_common.errors import RolloutPoolError

FAILURES = 5
"""Calls without a connection in a row that take a port out."""
OPEN_SECONDS = 10.0


class TrainerDown(RolloutPoolError):
    """Nobody can connect to the trainer's port; its rollouts wait for it."""


@dataclass
class _PortFailures:
    in_a_row: int = 0
    why: str = ""
    """Of the last one."""
    retry_at: float = 0.0
    """On the breakers' clock; it counts once there are `FAILURES`."""


class Breakers:
    """The ports that this process calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with every port closed. `clock` returns seconds; tests pass their own."""
        self._clock = clock
        # A port without failures has no entry.
        self._ports: dict[str, _PortFailures] = {}

    def check(self, origin: str) -> None:
        """Asks whether a port may be called now. A caller that may has to report `failed` or `worked`."""
        port = self._ports.get(origin)
        if port is None or port.in_a_row < FAILURES:
            return
        now = self._clock()
        if now < port.retry_at:
            raise TrainerDown(
                f"{origin}: {port.in_a_row} calls in a row got no connection (the last one: {port.why}), so its "
                "rollouts wait for it"
            )
        # This caller may try. Until it reports, the others are refused.
        port.retry_at = now + OPEN_SECONDS

    def is_closed(self, origin: str) -> bool:
        """Whether calls to a port go through; changes nothing."""
        port = self._ports.get(origin)
        return port is None or port.in_a_row < FAILURES

    def failed(self, origin: str, why: str) -> None:
        """Reports a call without a connection; the one that makes `FAILURES` in a row takes the port out."""
        port = self._ports.setdefault(origin, _PortFailures())
        port.in_a_row += 1
        port.why = why
        if port.in_a_row >= FAILURES:
            port.retry_at = self._clock() + OPEN_SECONDS

    def worked(self, origin: str) -> None:
        """Reports an answer, with whatever status, and closes the port's breaker."""
        self._ports.pop(origin, None)
