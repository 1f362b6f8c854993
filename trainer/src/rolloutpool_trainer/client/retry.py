"""How long a client goes on asking a pool that does not answer.

RetryPolicy runs out `seconds` after the first failure in a row; every answer renews it, so that a client lives
through any number of restarts of the API, each shorter than that.
"""

import time
from collections.abc import Iterator

import httpx

from rolloutpool_common.process.backoff import Backoff
from rolloutpool_trainer.client.calls import UNAVAILABLE, Call, T
from rolloutpool_trainer.errors import PoolUnavailable

__all__ = ["RetryPolicy", "status_delays"]

BACKOFF = Backoff(first_s=0.1, longest_s=5.0)
"""With jitter, because after a restart of the API all of a trainer's processes come back at once."""


class RetryPolicy:
    """The failures in a row of one call."""

    def __init__(self, call: Call[T], base_url: str, seconds: float) -> None:
        self._name = f"{call.method} {base_url}{call.path}"
        self._answers = call.answers
        self._seconds = seconds
        self._deadline: float | None = None
        self._failures = 0

    def after_error(self, error: httpx.TransportError) -> float:
        """Seconds to wait before asking again.

        Raises:
            PoolUnavailable: RetryPolicy has run out.
        """
        reason = str(error) or type(error).__name__
        return self._next(f"{self._name}: no answer ({reason})", None, 0.0)

    def after_answer(self, response: httpx.Response) -> float | None:
        """As `after_error`; None when the answer is one to read."""
        status = response.status_code
        if status not in UNAVAILABLE or status in self._answers:
            return None
        try:
            wanted = float(response.headers.get("Retry-After", "0"))
        except ValueError:
            wanted = 0.0
        return self._next(f"{self._name}: the pool answered {status}", status, wanted)

    def _next(self, what: str, status: int | None, wanted: float) -> float:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        left = self._deadline - now
        if left <= 0:
            raise PoolUnavailable(
                f"{what}, for {self._seconds:g} s; is the pool running at this address?", status=status
            )
        self._failures += 1
        delay = max(BACKOFF.delay_s(self._failures), min(wanted, BACKOFF.longest_s))
        return min(delay, left)


def status_delays() -> Iterator[float]:
    """Seconds between two looks at a batch's state: quick for short batches, easy on the pool for long ones."""
    delay = 0.05
    while True:
        yield delay
        delay = min(delay * 1.5, 1.0)
