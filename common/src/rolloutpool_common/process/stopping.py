"""Ctrl-C, SIGTERM and SIGHUP end a process that runs until then. The first stops it in order, later ones hurry it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """Raised in the main thread by the first signal. It is no Exception, so that nothing handles it as an error."""


@contextmanager
def stop_on_signals(at_once: Callable[[], None], stopping: Callable[[], None]) -> Iterator[None]:
    """Makes the first signal within the block raise `StopRequested`, which ends the block without an error."""
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            at_once()
            return
        requested = True
        # The signal may interrupt a print, and Python's streams then refuse to print another line.
        with suppress(RuntimeError):
            stopping()
        raise StopRequested

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    except StopRequested:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
