"""Breakers: a trainer's port that nobody can connect to costs its own rollouts time, and those of other trainers none.

Each port (`http://host:port`) is in one of three states:

1. Closed, the normal state: calls go through. Each call without a connection is counted, with its reason (refused, no
   answer in time, a name that does not resolve); any answer resets the count.
2. Open, after `FAILURES` calls without a connection in a row: `check` raises `TrainerDown` for a pause. The rollouts
   are deferred, so that they wait in the queue and hold no slot.
3. Half open, when that pause is over: `check` tells one caller to try the port, and refuses the others meanwhile. If it
   gets an answer, the port is closed again. If it gets no connection, the next pause is twice as long, up to
   `PAUSE.longest_s`.

Example: a trainer restarts for a minute. The first five calls are refused; after that one rollout tries 1, 2, 4, 8 and
then every 10 seconds, until the trainer listens again. So one that is back after a second is found a second later.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.backoff import Backoff

FAILURES = 5
"""Calls without a connection in a row that take a port out."""
PAUSE = Backoff(first_s=1.0, longest_s=10.0, jitter=False)
"""How long a port is not called, and a rollout waits for it, the first time, the second time and so on."""


def waited_s(deferrals: int) -> float:
    """Computes how long a rollout has waited in all that was deferred so often."""
    return sum(PAUSE.delay_s(number) for number in range(1, deferrals + 1))


class TrainerDown(RolloutPoolError):
    """Nobody can connect to the trainer's port; its rollouts wait for it."""


@dataclass
class _PortFailures:
    in_a_row: int = 0
    why: str = ""
    """Of the last one."""
    retry_at: float = 0.0
    """On the breakers' clock; it counts once there are `FAILURES`."""
    pauses: int = 0
    tried: bool = True
    """Whether a caller was told to try it since the last pause began. Calls that began before it prolong nothing."""


class Breakers:
    """The ports that this process calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with every port closed. `clock` returns seconds; tests pass their own."""
        self._clock = clock
        # A port without failures has no entry.
        self._ports: dict[str, _PortFailures] = {}

    def check(self, origin: str) -> bool:
        """Asks whether a port may be called now; a caller that may has to report `failed` or `worked`.

        Returns whether the port is half open: it should be tried by a call that has a quick answer, since all others
        wait for that, and a turn may take minutes.
        """
        port = self._ports.get(origin)
        if port is None or port.in_a_row < FAILURES:
            return False
        now = self._clock()
        if now < port.retry_at:
            raise TrainerDown(
                f"{origin}: {port.in_a_row} calls in a row got no connection (the last one: {port.why}), so its "
                "rollouts wait for it"
            )
        # Until this caller reports, the others are refused.
        port.retry_at, port.tried = now + PAUSE.longest_s, True
        return True

    def is_closed(self, origin: str) -> bool:
        """Whether calls to a port go through; changes nothing."""
        port = self._ports.get(origin)
        return port is None or port.in_a_row < FAILURES

    def failed(self, origin: str, why: str) -> None:
        """Reports a call without a connection; the one that makes `FAILURES` in a row takes the port out."""
        port = self._ports.setdefault(origin, _PortFailures())
        port.in_a_row += 1
        port.why = why
        if port.in_a_row >= FAILURES and port.tried:
            port.pauses, port.tried = port.pauses + 1, False
            port.retry_at = self._clock() + PAUSE.delay_s(port.pauses)

    def worked(self, origin: str) -> None:
        """Reports an answer, with whatever status, and closes the port's breaker."""
        self._ports.pop(origin, None)
