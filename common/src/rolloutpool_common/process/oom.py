"""Counts the processes that the kernel ended because this container had no memory left (OOM kills).

Such a process ends by SIGKILL, as after `kill -9`. The difference is in the counter `oom_kill` of the cgroup, which is
the kernel's name for a container: cgroup v2 has it in `memory.events`, v1 in `memory.oom_control`. The kernel raises it
before it sends the signal. The counter does not say which process was ended, so `OomKills` keeps the times at which it
rose, and gives each rise to one process that ended by SIGKILL shortly after.

Outside of a container there may be no such file; then nothing is known, and no end is called an OOM kill.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

RECENT_SECONDS = 5.0
"""A process that was killed for its memory is gone within moments; a large one takes a second to be torn down."""
_ROOT = Path("/sys/fs/cgroup")


def count_oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int | None:
    """Reads the counter of this process's cgroup; None where the system has none."""
    try:
        memberships = [line.split(":", 2) for line in cgroup.read_text().splitlines()]
    except OSError:
        return None
    for number, controllers, path in (parts for parts in memberships if len(parts) == 3):
        # In a container the path may be the host's, which is not mounted here; the container's own files then are at
        # the root of the mount.
        if number == "0":
            files = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            memory = root / "memory"
            files = [memory / path.lstrip("/") / "memory.oom_control", memory / "memory.oom_control"]
        else:
            continue
        for file in files:
            count = _read(file)
            if count is not None:
                return count
    return None


class OomKills:
    """Tells for each process that ended by SIGKILL whether the kernel did it for want of memory."""

    def __init__(
        self, count: Callable[[], int | None] = count_oom_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins with the counter as it is now; tests pass their own counter and clock."""
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = count()
        self._rises: deque[float] = deque()

    def look(self) -> None:
        """Notes when the counter rose. Called once a second, so that an old rise is known to be old."""
        with self._lock:
            self._look()

    def take(self) -> bool:
        """Whether the counter rose shortly before a process ended by SIGKILL; each rise explains one such end."""
        with self._lock:
            self._look()
            while self._rises and self._clock() - self._rises[0] > RECENT_SECONDS:
                self._rises.popleft()
            if not self._rises:
                return False
            self._rises.popleft()
            return True

    def _look(self) -> None:
        count = self._count()
        if count is not None and self._seen is not None:
            self._rises.extend([self._clock()] * max(0, count - self._seen))
        self._seen = count


def _read(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
