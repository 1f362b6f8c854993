"""Starts child processes, waits until they are ready, starts them again, and stops them in order.

The local pool is made of such processes, and the parent of a machine's workers has one for each worker. A child that
ends before it is ready is an error with the end of its log. After that it is started again when it ends; `child.py`
does that.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.child import Child, ChildSpec, Role

POLL_SECONDS = 0.05
PROGRESS = 0.05
"""The share of a core above which a starting child gets on. One that only waits, and looks around, uses a fiftieth."""
NOTE_SECONDS = 10.0
"""After so long people are told what is waited for: over a Redis that was down, two minutes went by without a word."""
KILLED_SECONDS = 5.0
"""How long a child may take to end after it was killed."""


class ChildNotReady(RolloutPoolError):
    """A child process ended before it was ready, or took too long."""


class Supervisor:
    """The child processes of one process: starts them, waits for them, and stops them in the order of their roles."""

    def __init__(
        self, report: Callable[[str], None] | None = None, *, error: type[RolloutPoolError] = ChildNotReady
    ) -> None:
        """Starts nothing yet."""
        self._report = report or logging.getLogger("rolloutpool").warning
        self._error = error
        self._children: list[Child] = []
        self._hurried = self._stopped = False

    def start(self, spec: ChildSpec, *, ready: bool = False) -> Child:
        """Starts a process; it need not be ready yet when this returns."""
        child = Child(spec, self._report, ready=ready)
        # Before its process: a signal may interrupt the start, and `stop` must know of it then. One that was forgotten
        # here came up 44 s later, and took work.
        self._children.append(child)
        if self._stopped:
            child.stop()
        child.start()
        return child

    def wait_ready(self, children: Iterable[Child], ready: Callable[[], bool], timeout: float) -> None:
        """Waits until children are ready, as long as they get on."""
        children = list(children)
        deadline, used = time.monotonic() + timeout, _cpu_seconds(children)
        note_at = time.monotonic() + NOTE_SECONDS
        pause = threading.Event()
        while not ready():
            for child in children:
                if child.ended:
                    raise self._error(child.failure())
            if time.monotonic() > note_at:
                note_at = math.inf
                for child in children:
                    self._report(f"still waiting for {child.spec.name}, which last wrote\n{child.log_tail(1)}")
            if time.monotonic() > deadline:
                before, used = used, _cpu_seconds(children)
                if used - before > PROGRESS * timeout and used < timeout * len(children):
                    deadline = time.monotonic() + timeout
                    continue
                tails = "\n".join(f"{child.spec.name}:\n{child.log_tail()}" for child in children)
                raise self._error(f"not ready, and no progress for {timeout:g} s; the logs end with\n{tails}")
            pause.wait(POLL_SECONDS)
        for child in children:
            # What answers may be another one of them.
            if child.ended and child.exit_code:
                raise self._error(child.failure())
            child.now_ready()

    def children(self, role: Role) -> list[Child]:
        """Returns the children of a role that have not ended for good."""
        return [child for child in self._children if child.spec.role is role and not child.ended]

    def stop_child(self, child: Child) -> None:
        """Stops one child; it is killed if it takes longer than its grace."""
        child.stop()
        self._await_end([child])

    def stop(self) -> None:
        """Stops all children in the order of their roles: workers first, Redis last. Meanwhile nothing is started."""
        self._stopped = True
        try:
            for role in Role:
                children = self.children(role)
                for child in children:
                    child.stop()
                self._await_end(children)
        finally:
            self._stopped = False

    def hurry(self) -> None:
        """Sends SIGTERM once more, which tells workers to wait for nothing; the next call kills all children at once.

        A signal handler may call it while `stop` waits.
        """
        if self._hurried:
            return self.kill()
        self._hurried = True
        for child in self._children:
            child.send(signal.SIGTERM)

    def kill(self) -> None:
        """Kills all children at once. A signal handler may call it while `stop` waits."""
        for child in self._children:
            child.stop(signal.SIGKILL)

    def wait(self) -> None:
        """Waits until all children have ended for good, which they do only when they are stopped."""
        pause = threading.Event()
        while not all(child.ended for child in self._children):
            pause.wait(1.0)

    def wait_first(self) -> Child:
        """Waits until one child has ended for good; there must be a child."""
        pause = threading.Event()
        while True:
            for child in self._children:
                if child.ended:
                    return child
            pause.wait(POLL_SECONDS)

    def _await_end(self, children: Sequence[Child]) -> None:
        # One deadline for all, because they stop side by side.
        deadline = time.monotonic() + max((child.spec.grace_seconds for child in children), default=0.0)
        for child in children:
            if not child.join(max(0.0, deadline - time.monotonic())):
                self._report(f"{child.spec.name} did not stop in time and was killed")
                child.stop(signal.SIGKILL)
                child.join(KILLED_SECONDS)


def _cpu_seconds(children: Iterable[Child]) -> float:
    """CPU time that their processes have used; 0 where the system does not say."""
    used = 0.0
    for child in children:
        with suppress(OSError):
            # After the name, which may hold spaces: fields 14 and 15 of proc(5), in ticks.
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used
