"""Counts the CPU time that a thread works, without the garbage that it happens to collect.

Python collects in whatever thread makes the next object, and a full collection of a large process takes long: 1.3 s
were seen in one with all tokenizers. Counted as a render, it refused a template that takes a millisecond.
"""

import gc
import threading
import time
from typing import Any


class _Collections(threading.local):
    """The full collections of this thread."""

    seconds = 0.0
    began = 0.0


_collections = _Collections()


def work_seconds() -> float:
    """Returns this thread's CPU time, without full collections."""
    return time.thread_time() - _collections.seconds


def _note(phase: str, info: dict[str, Any]) -> None:
    """Hears of each collection. Those of the younger generations are short, and belong to the work itself."""
    if info["generation"] < 2:
        return
    if phase == "start":
        _collections.began = time.thread_time()
    else:
        _collections.seconds += time.thread_time() - _collections.began


gc.callbacks.append(_note)
