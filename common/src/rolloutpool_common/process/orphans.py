"""Reaps orphans where they come to this process: as the first one of its container, or because it asked for them.

A process whose parent has ended becomes a child of PID 1, or of the next ancestor that asked for orphans
(`fork_server.py`). When it ends too, it stays in the list of processes as a zombie until its new parent asks for its
exit code; enough of them fill the list.

1. Once a second, the kernel is asked whether any child is a zombie. If so, `/proc` is searched for all of them.
2. A zombie that was there at two looks is an orphan: our own children are reaped by the threads that wait for them,
   within moments. Those that must never be taken, because their exit code tells how they died, are left out besides.
"""

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 1.0


class Orphans:
    """The zombies among the children of this process."""

    def __init__(self, proc: Path = Path("/proc"), *, spare: Callable[[], Collection[int]] = tuple) -> None:
        """Looks at nothing yet."""
        self._proc = proc
        self._spare = spare
        self._before: set[int] = set()

    def reap(self) -> set[int]:
        """Reaps the zombies that were there at the last look too, and returns their process ids."""
        zombies = self._zombies() - set(self._spare())
        orphans = zombies & self._before
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._before = zombies - orphans
        return orphans

    def _zombies(self) -> set[int]:
        if not _any_zombie():
            return set()
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


def reap_orphans(spare: Callable[[], Collection[int]] = tuple, *, adopted: bool = False) -> None:
    """Starts a thread that reaps orphans, where they come to this process; does nothing elsewhere."""
    if os.getpid() != 1 and not adopted:
        return
    orphans, pause = Orphans(spare=spare), threading.Event()

    def run() -> None:
        while not pause.wait(LOOK_SECONDS):
            orphans.reap()

    threading.Thread(target=run, name="orphans", daemon=True).start()


def _any_zombie() -> bool:
    """Whether a child of this process has ended and was not reaped. A look costs one call, however many run here."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return False
