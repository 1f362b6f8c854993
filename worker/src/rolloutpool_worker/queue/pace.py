"""Pace: a worker that fills up pauses after each message, so that idle workers get their share.

Redis gives a message to the worker that asks first. One that is a moment ahead, because it came up first or has a core
for itself, would take a whole batch before another worker asks. So a worker leaves the others time while it fills up:

1. The worker's level is the most rollouts that it had at once in the last 0.25 to 0.5 s.
2. A message that stays within it replaces rollouts that have ended: no pause. So a busy pool loses nothing.
3. A message that goes beyond it is followed by a pause of `PAUSE_SECONDS` for each rollout beyond.

Example: two idle workers, a batch of 64, 8 rollouts per message. The worker that takes the first message pauses for
24 ms. Meanwhile the other one takes the second, and so on: 32 each. If there is no other one, the first worker takes
all 64 within 0.2 s.
"""

from collections.abc import Callable
from time import monotonic

PAUSE_SECONDS = 0.003
"""For each rollout that a worker has more than lately. An empty worker with 256 slots is full after 0.8 s."""
SPAN_SECONDS = 0.25
"""The level is that of this span and of the one before."""


class Pace:
    """When this worker may reserve its next message; used by Celery's thread only."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        """Starts without a pause."""
        self._clock = clock
        self._paused_until = clock()
        self._span = 0
        self._highest = self._highest_before = 0
        self.on_pause: Callable[[float], object] = lambda seconds: None
        """Called with the length of each pause; wakes the hub after it."""

    @property
    def may_reserve(self) -> bool:
        """Whether no pause lasts."""
        return self._clock() >= self._paused_until

    def took(self, count: int, running: int) -> None:
        """Notes that a message was taken, and pauses where the worker fills up."""
        now = self._clock()
        span, had = int(now / SPAN_SECONDS), running - count
        if span != self._span:
            self._highest_before = self._highest if span == self._span + 1 else 0
            self._span, self._highest = span, had
        level = max(self._highest_before, self._highest, had)
        self._highest = max(self._highest, running)
        if running > level:
            pause = (running - level) * PAUSE_SECONDS
            self._paused_until = now + pause
            self.on_pause(pause)
