"""How long to wait before trying again: delays that double from failure to failure, up to a limit.

`Backoff` only answers "how many seconds after the n-th failure in a row?"; the loop that retries stays where it is.
Libraries for this (tenacity, stamina) own the loop instead. That does not fit here: one loop counts its failures in
Redis (webhooks), one runs in a thread, one waits for an event that ends the wait early, and one must stop at a
rollout's border.

Example: `Backoff(first_s=0.5, longest_s=30.0)` waits 0.25 to 0.5 s after the first failure, 0.5 to 1 s after the
second, and 15 to 30 s from the seventh on.
"""

import math
import random
from dataclasses import dataclass

MOST_DOUBLINGS = 64
"""2.0 to the power of the number of failures must stay a float, however many there were."""


@dataclass(frozen=True)
class Backoff:
    """Delays in seconds that double with each failure."""

    first_s: float
    """The delay after the first failure."""
    longest_s: float = math.inf
    """No delay is longer than this."""
    jitter: bool = True
    """Shortens each delay at random by up to half, so that those that failed together do not come back together."""

    def delay_s(self, failures: int) -> float:
        """Computes the delay after so many failures in a row."""
        delay = min(self.first_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS), self.longest_s)
        return random.uniform(delay / 2, delay) if self.jitter else delay
