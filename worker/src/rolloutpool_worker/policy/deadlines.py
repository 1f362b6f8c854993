"""Deadlines: what is to happen if a call isn't over in time, for no timer of its own.

Nearly all calls end long before their limit, so a timer for each is made and cancelled in vain. Here:

1. What has a deadline says when it is `due` and stands among those that wait, until it is taken out again.
2. One timer of the event loop is set for the first of them. When it fires, all that are due expire, and it is set for
   the first one that is left.
3. It fires at most each quarter of a second. So a deadline is late by no more than that.
"""

import asyncio
from typing import Protocol

LATE_SECONDS = 0.25
"""How late a deadline may be."""


class Timed(Protocol):
    """Something that has a deadline."""

    due: float
    """On the clock of the event loop."""

    def expire(self) -> None:
        """Is called once when it is due, after it was taken out."""
        ...


class Deadlines:
    """The deadlines of one event loop."""

    def __init__(self) -> None:
        self.waiting: set[Timed] = set()
        """Who is not over yet; `discard` takes one out, whether it is still here or not."""
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def add(self, timed: Timed) -> None:
        """Lets one wait, or wait for another time than before."""
        self.waiting.add(timed)
        if self._timer is None or timed.due < self._fires_at:
            self._set_timer(timed.due)

    def close(self) -> None:
        """Forgets all of them."""
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        try:
            for timed in sorted((one for one in self.waiting if one.due <= now), key=lambda one: one.due):
                # One that expires may take out others.
                if timed in self.waiting:
                    self.waiting.discard(timed)
                    timed.expire()
        finally:
            # Also where one of them fails: the others still have their limits.
            if self.waiting:
                self._set_timer(max(min(one.due for one in self.waiting), now + LATE_SECONDS))
