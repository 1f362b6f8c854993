"""Ctrl-C, SIGTERM and SIGHUP for commands that run until then: the first stops in order, the second at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["StopRequested", "stop_on_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """Raised in the main thread by the first signal. Not an Exception: nothing may take it for an error."""


@contextmanager
def stop_on_signals(at_once: Callable[[], None], stopping: Callable[[], None]) -> Iterator[None]:
    """Within the block, the first signal raises `StopRequested`; it ends with the block, quietly.

    Args:
        at_once: Called by each further signal, while the block's own `finally` clauses run.
        stopping: Called by the first signal, before it raises.
    """
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            at_once()
            return
        requested = True
        # It may come in the middle of a line that is being printed, and Python's streams refuse a second one then.
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
