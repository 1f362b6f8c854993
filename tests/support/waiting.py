"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable

__all__ = ["eventually"]


def eventually(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Returns as soon as the condition holds; fails the test when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        time.sleep(0.02)
