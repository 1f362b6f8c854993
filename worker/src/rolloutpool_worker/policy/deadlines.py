"""Deadlines: what is to happen if a call isn't over in time, for less than a timer of the event loop each.

Nearly all calls end long before their limit, so a timer for each is made and cancelled in vain. Here:

1. Deadlines of equal length stand in one row, in the order in which they were set, so the first one is due first.
2. A row has one timer. When it fires, all that are due expire, and the timer is set for the first one that is left.
3. A timer fires at most each quarter of a second, or each eighth of the row's length where that is shorter. So a
   deadline is late by no more than that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

LATE_SECONDS = 0.25
"""How late a deadline may be."""


class Deadline:
    """One deadline that is set."""

    __slots__ = ("_row", "expire", "when")

    def __init__(self, row: "_Row", when: float, expire: Callable[[], None]) -> None:
        self._row = row
        self.when = when
        self.expire = expire

    def cancel(self) -> None:
        """Takes it back; harmless when it has expired."""
        self._row.waiting.pop(self, None)


class _Row:
    """All deadlines of one length."""

    __slots__ = ("late", "timer", "waiting")

    def __init__(self, seconds: float) -> None:
        # A list would keep what was cancelled behind one that runs for minutes; a dict would search for its first.
        self.waiting: OrderedDict[Deadline, None] = OrderedDict()
        self.late = min(LATE_SECONDS, seconds / 8)
        self.timer: asyncio.TimerHandle | None = None


class Deadlines:
    """The deadlines of one event loop."""

    def __init__(self) -> None:
        self._rows: dict[float, _Row] = {}

    def set(self, seconds: float, expire: Callable[[], None]) -> Deadline:
        """Sets a deadline; `expire` is called once when so many seconds have passed, if nobody cancels it."""
        loop = asyncio.get_running_loop()
        row = self._rows.get(seconds)
        if row is None:
            row = self._rows[seconds] = _Row(seconds)
        deadline = Deadline(row, loop.time() + seconds, expire)
        row.waiting[deadline] = None
        if row.timer is None:
            row.timer = loop.call_at(deadline.when, partial(self._fire, loop, seconds))
        return deadline

    def close(self) -> None:
        """Takes all of them back."""
        for row in self._rows.values():
            if row.timer is not None:
                row.timer.cancel()
        self._rows.clear()

    def _fire(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        row, now = self._rows[seconds], loop.time()
        while row.waiting and (first := next(iter(row.waiting))).when <= now:
            del row.waiting[first]
            first.expire()
        if row.waiting:
            when = max(next(iter(row.waiting)).when, now + row.late)
            row.timer = loop.call_at(when, partial(self._fire, loop, seconds))
        else:
            # Rows of lengths that are not used again would pile up.
            del self._rows[seconds]
