"""A circuit breaker per callback port: a dead port costs its own rollouts time, and the others nothing.

After `FAILURES` refused connections in a row the port is taken out for `OPEN_SECONDS`: its rollouts go back to the
queue and wait there, so that they hold no slot. Then one call may try; if it gets through, the port is back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rolloutpool_common.errors import RolloutPoolError

__all__ = ["FAILURES", "OPEN_SECONDS", "Breakers", "TrainerDown"]

FAILURES = 5
OPEN_SECONDS = 10.0


class TrainerDown(RolloutPoolError):
    """The trainer's port refuses connections; its rollouts wait for it."""


@dataclass
class _State:
    failures: int = 0
    retry_at: float = 0.0


class Breakers:
    """The ports that this process calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, _State] = {}

    def check(self, origin: str) -> None:
        """Raises `TrainerDown` while the port is taken out; lets one caller through when its time is over."""
        state = self._states.get(origin)
        if state is None or state.failures < FAILURES:
            return
        now = self._clock()
        if now < state.retry_at:
            raise TrainerDown(f"{origin} refused {state.failures} connections in a row: {TrainerDown.__doc__}")
        # Whoever comes next while this one tries waits for another round.
        state.retry_at = now + OPEN_SECONDS

    def failed(self, origin: str) -> None:
        """A connection was refused."""
        state = self._states.setdefault(origin, _State())
        state.failures += 1
        if state.failures >= FAILURES:
            state.retry_at = self._clock() + OPEN_SECONDS

    def worked(self, origin: str) -> None:
        """Something answered there, whatever it was."""
        self._states.pop(origin, None)

    def down(self) -> list[str]:
        """The ports that are taken out."""
        return sorted(origin for origin, state in self._states.items() if state.failures >= FAILURES)
