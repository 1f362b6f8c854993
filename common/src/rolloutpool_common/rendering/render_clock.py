"""The time that templates print, which can be held still.

A template with `strftime_now` prints the time of its render. Two renders that are compared with each other must be made
at one time. Else they differ at midnight, or always where a template prints microseconds.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class _Clock(threading.local):
    """The time at which this thread's renders are made."""

    held = False
    now: datetime | None = None
    """None until a template asks; most never do."""


_clock = _Clock()


def strftime_now(layout: str) -> str:
    """Formats the local time, as the function of this name does that transformers gives to templates."""
    now = _clock.now or _local()
    if _clock.held:
        _clock.now = now
    return now.strftime(layout)


@contextmanager
def one_time() -> Iterator[None]:
    """Makes all renders of this thread inside at one time, that of the first one that asks."""
    if _clock.held:
        yield
        return
    _clock.held = True
    try:
        yield
    finally:
        _clock.held, _clock.now = False, None


def _local() -> datetime:
    # Without a time zone, as in transformers: `%Z` prints nothing.
    return datetime.now(UTC).astimezone().replace(tzinfo=None)
