"""What a rollout waits for while its records are written: for Redis, or for its worker, which is busy with others.

The event loop of a worker does one thing at a time, so an answer of Redis lies there until the loop reads it, and its
rollout goes on only after that. The wall clock alone can't tell these waits from Redis'. So:

1. A line notes how long it had no answer, and takes off how long its thread ran meanwhile, or was ready to run and got
   no CPU (`line.py`). The rest was idle: there was nothing to do but wait for Redis. All lines add to one `IdleTime`.
2. A rollout that writes a record looks at that sum before and after (`Rollouts.journal`). What has come to it was
   Redis; the rest of the wait was the worker's.

A hundred rollouts share one write to Redis, and with it these looks. Linux says how long a thread ran and was ready; on
other systems all the time from a write to its answer counts as Redis', a pass of the loop too much.

Example: a record was durable 30 ms after it was written. Redis was asked after 12, and its answer was read 9 ms later,
in which the loop worked for 8. So the rollout waited 1 ms for Redis and 29 for the worker.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(slots=True)
class IdleTime:
    """How long an event loop had nothing to do while Redis owed it an answer."""

    seconds: float = 0.0


@dataclass(slots=True)
class WriteWaits:
    """What one claimed rollout has waited for, seconds."""

    worker: float = 0.0
    redis: float = 0.0


class ThreadStat:
    """An open file, in which Linux says how many nanoseconds a thread ran, and how many it was ready and did not."""

    def __init__(self) -> None:
        """Opens that of the calling thread; raises OSError elsewhere."""
        self.fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """Closes it, when its thread has ended; `os` has no functions any more when the process ends."""
        if hasattr(self, "fd"):
            close(self.fd)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stat: ThreadStat | None = None
        with suppress(OSError):
            self.stat = ThreadStat()


THREAD = _Thread()
"""Of the calling thread."""


def wanted_seconds(before: bytes, after: bytes) -> float:
    """How long a thread ran, or was ready to, between two looks into its file."""
    (ran, ready), (ran_then, ready_then) = map(int, after.split()[:2]), map(int, before.split()[:2])
    return (ran - ran_then + ready - ready_then) / 1e9
