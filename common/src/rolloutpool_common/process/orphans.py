"""Reaps orphans where this process is the first one of its container (PID 1).

A process whose parent has ended becomes a child of PID 1. When it ends too, it stays in the list of processes as a
zombie until its new parent asks for its exit code; enough of them fill the list. Elsewhere init does that.

1. Once a second, `/proc` is searched for zombies that are children of this process.
2. A zombie that was there at two looks is an orphan: our own children are reaped by the threads that wait for them,
   within moments. So no exit code is taken away from these threads.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["Orphans", "reap_orphans"]

LOOK_SECONDS = 1.0


class Orphans:
    """The zombies among the children of this process."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """`proc` is where the kernel lists processes; tests pass their own."""
        self._proc = proc
        self._before: set[int] = set()

    def reap(self) -> set[int]:
        """Reaps the zombies that were there at the last look too, and returns their process ids."""
        zombies = self._zombies()
        orphans = zombies & self._before
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._before = zombies - orphans
        return orphans

    def _zombies(self) -> set[int]:
        parent = str(os.getpid())
        found = set()
        for entry in self._proc.iterdir():
            if not entry.name.isdecimal():
                continue
            # It may have ended between the list and this read.
            with suppress(OSError):
                # "PID (NAME) STATE PARENT ...": the name may hold spaces and brackets.
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and ppid == parent:
                    found.add(int(entry.name))
        return found


def reap_orphans() -> None:
    """Starts a thread that reaps orphans, where this process is PID 1; does nothing elsewhere."""
    if os.getpid() != 1:
        return
    orphans, pause = Orphans(), threading.Event()

    def run() -> None:
        while not pause.wait(LOOK_SECONDS):
            orphans.reap()

    threading.Thread(target=run, name="orphans", daemon=True).start()
