"""When a client asks a pool again that does not answer, and when it gives up.

1. A lost connection, or a status of `calls.UNAVAILABLE`, is a failure; the call is sent again after a pause.
2. The pause doubles from 0.1 s to 5 s, with jitter. It is at least as long as the pool's `Retry-After`.
3. The client gives up `seconds` after the first failure of a call. Each call begins anew, so a client survives any
   number of restarts of the API that are shorter than that.
"""

import time
from collections.abc import Iterator

import httpx

from rolloutpool_common.process.backoff import Backoff
from rolloutpool_trainer.client.calls import UNAVAILABLE, Call, T, what_was_said
from rolloutpool_trainer.errors import PoolUnavailable

BACKOFF = Backoff(first_s=0.1, longest_s=5.0)
"""With jitter, because after a restart of the API all of a trainer's processes come back at once."""


class RetryPolicy:
    """Counts the failures of one call, and says how long to wait after each."""

    def __init__(self, call: Call[T], base_url: str, seconds: float) -> None:
        self._name = f"{call.method} {base_url}{call.path}"
        self._answers = call.answers
        self._seconds = seconds
        self._deadline: float | None = None
        self._failures = 0

    def after_error(self, error: httpx.TransportError) -> float:
        """Counts a failure; returns the seconds to wait before the next attempt.

        Raises:
            PoolUnavailable: The time for this call is over.
        """
        reason = str(error) or type(error).__name__
        return self._next(f"{self._name}: no answer ({reason})", None, 0.0)

    def after_answer(self, response: httpx.Response) -> float | None:
        """Counts a failure if the answer is one, as `after_error` does; None means that the answer can be read."""
        # For some calls a 503 is the answer that was asked for, such as that of a pool that is not ready.
        status = response.status_code
        if status not in UNAVAILABLE or status in self._answers:
            return None
        try:
            wanted = float(response.headers.get("Retry-After", "0"))
        except ValueError:
            # HTTP also allows a date, which the pool never sends but a proxy may.
            wanted = 0.0
        # What is full, and whose, is in the pool's own words.
        said = what_was_said(response)
        return self._next(f"{self._name}: the pool answered {status}{said and f' ({said})'}", status, wanted)

    def _next(self, what: str, status: int | None, wanted: float) -> float:
        now = time.monotonic()
        # The time counts from the first failure: a long-poll may have waited for long before that without any fault.
        if self._deadline is None:
            self._deadline = now + self._seconds
        left = self._deadline - now
        if left <= 0:
            asked = "" if status is not None else "; is the pool running at this address?"
            # The traceback of the last attempt says no more than `what`.
            raise PoolUnavailable(f"{what}, for {self._seconds:g} s{asked}", status=status) from None
        self._failures += 1
        delay = max(BACKOFF.delay_s(self._failures), min(wanted, BACKOFF.longest_s))
        # The last pause ends at the deadline, so that one more attempt is made there.
        return min(delay, left)


def status_delays() -> Iterator[float]:
    """Yields the seconds between two looks at a batch's state: from 50 ms for short batches to 1 s for long ones."""
    delay = 0.05
    while True:
        yield delay
        delay = min(delay * 1.5, 1.0)
