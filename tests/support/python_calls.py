"""How many Python functions something calls: a cost that other load on the machine does not change."""

import sys
from collections.abc import Callable
from types import FrameType


def python_calls(action: Callable[[], object]) -> int:
    """Runs an action, and counts the calls of Python functions in it, without its own."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls - 1
