"""The processes of a pool on this machine: started, watched, started again, stopped in order.

Nothing survives the supervisor: each child dies with the thread that watches it, and with the process, even after
kill -9 (Linux). A child that ends before it was ready is an error with the tail of its log; after that it is started
again, with growing delay. Children are in process groups of their own, so that Ctrl-C reaches the supervisor only.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from rolloutpool_common.process.backoff import Backoff
from rolloutpool_trainer.errors import ChildFailed
from rolloutpool_trainer.local import launch

__all__ = ["Child", "ChildSpec", "Role", "Supervisor"]

RESTART = Backoff(first_s=0.5, longest_s=15.0, jitter=False)
"""Between a crash of a child and its next start."""
STEADY_SECONDS = 60.0
"""A child that lived this long starts again without the delay of earlier crashes."""
POLL_SECONDS = 0.05
TAIL_LINES = 20


class Role(IntEnum):
    """What a child is; the order is the order of stopping."""

    WORKER = 0
    """First: it finishes or gives back what it runs, for which it needs all others."""
    API = 1
    FLOWER = 2
    REDIS = 3
    """Last: it holds what the others wrote."""


GRACE_SECONDS = {Role.WORKER: 30.0, Role.API: 10.0, Role.FLOWER: 5.0, Role.REDIS: 10.0}
"""How long a child may take to stop before it is killed; a worker has its own drain time before that."""
DRAIN_VARIABLE, DRAIN_SECONDS = "ROLLOUTPOOL_DRAIN_SECONDS", 30.0
KILLED_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to start a child."""

    name: str
    role: Role
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to this process' environment. Secrets go here, never into `command`."""
    log: Path | None = None
    """Appended to; None writes to where this process writes."""
    pass_fds: tuple[int, ...] = ()
    niceness: int = 0
    """Above 0 for what may wait when the machine is busy."""

    @property
    def environment(self) -> dict[str, str]:
        """What the process gets: this process' environment and `env`."""
        return {**os.environ, **self.env}

    @property
    def grace_seconds(self) -> float:
        """How long it may take to stop."""
        grace = GRACE_SECONDS[self.role]
        if self.role is not Role.WORKER:
            return grace
        try:
            return grace + float(self.environment.get(DRAIN_VARIABLE, DRAIN_SECONDS))
        except ValueError:
            # The worker itself refuses to start with such a setting, and says so.
            return grace


class Child:
    """One supervised process. Started by `Supervisor.start`."""

    def __init__(self, spec: ChildSpec, report: Callable[[str], None]) -> None:
        self.spec = spec
        self.restarts = 0
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._end = ""
        self._stop_signal = signal.SIGTERM
        self._stopping = threading.Event()
        self._spawned = threading.Event()
        self._steady = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {spec.name}", daemon=True)
        self._thread.start()
        self._spawned.wait()

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return not self._thread.is_alive()

    def now_ready(self) -> None:
        """From now on its end is a crash, after which it is started again."""
        self._steady.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process group; does nothing once it has ended."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """TurnRequest it to end, for good; `join` waits for that."""
        self._stop_signal = number
        self._stopping.set()
        self.send(number)

    def join(self, timeout: float) -> bool:
        """Whether it has ended for good within `timeout` seconds."""
        self._thread.join(timeout)
        return self.ended

    def log_tail(self) -> str:
        """The last lines that it wrote since it was first started."""
        if self.spec.log is None or not self.spec.log.exists():
            return "  | (it has no log)"
        with self.spec.log.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode("utf-8", "replace")
        lines = text.rstrip().splitlines()[-TAIL_LINES:]
        return "\n".join(f"  | {line}" for line in lines) or "  | (it wrote nothing)"

    def failure(self) -> ChildFailed:
        """Why it could not start."""
        where = f"; its log {self.spec.log} ends with" if self.spec.log else ""
        return ChildFailed(f"{self.spec.name} ended ({self._end}) before it was ready{where}:\n{self.log_tail()}")

    def _watch(self) -> None:
        crashes = 0
        while True:
            started = time.monotonic()
            how = self._run_once()
            if self._stopping.is_set() or not self._steady.is_set():
                return
            if time.monotonic() - started > STEADY_SECONDS:
                crashes = 0
            crashes += 1
            delay = RESTART.delay_s(crashes)
            log = f"; log: {self.spec.log}" if self.spec.log else ""
            self._report(f"{self.spec.name} ended ({how}); starting it again in {delay:g} s{log}")
            if self._stopping.wait(delay):
                return
            self.restarts += 1

    def _run_once(self) -> str:
        """Start it and wait for its end; returns how it ended."""
        try:
            self._process = self._spawn()
        except OSError as error:
            self._end = f"cannot start: {error}"
            return self._end
        finally:
            self._spawned.set()
        # A stop that came while it was being started has signalled nobody.
        if self._stopping.is_set():
            self.send(self._stop_signal)
        self._end = _exit_text(self._process.wait())
        return self._end

    def _spawn(self) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(self.spec.niceness)]
        output = None
        try:
            if self.spec.log is not None:
                output = self.spec.log.open("ab")
                if not self._spawned.is_set():
                    self._log_start = output.tell()
            return subprocess.Popen(
                [*launcher, *self.spec.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=self.spec.environment,
                pass_fds=self.spec.pass_fds,
                process_group=0,
            )
        finally:
            if output is not None:
                output.close()


def _exit_text(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


class Supervisor:
    """The children of one pool."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self._report = report or logging.getLogger("rolloutpool").warning
        self._children: list[Child] = []

    def start(self, spec: ChildSpec) -> Child:
        """Start a process; it is not ready yet when this returns."""
        child = Child(spec, self._report)
        self._children.append(child)
        return child

    def wait_ready(self, children: Iterable[Child], ready: Callable[[], bool], timeout: float) -> None:
        """Returns when `ready` says so; it is asked again and again, and must not block for long.

        Raises:
            ChildFailed: One of the children ended, or they are not ready after `timeout` seconds.
        """
        children = list(children)
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while not ready():
            for child in children:
                if child.ended:
                    raise child.failure()
            if time.monotonic() > deadline:
                tails = "\n".join(f"{child.spec.name}:\n{child.log_tail()}" for child in children)
                raise ChildFailed(f"not ready after {timeout:g} s; the logs end with\n{tails}")
            pause.wait(POLL_SECONDS)
        for child in children:
            child.now_ready()

    def children(self, role: Role) -> list[Child]:
        """The children of a role that have not ended for good."""
        return [child for child in self._children if child.spec.role is role and not child.ended]

    def stop_child(self, child: Child) -> None:
        """Stop one child; killed when its grace is over."""
        child.stop()
        self._await_end([child])

    def stop(self) -> None:
        """Stop all children in order: workers give back what they run, Redis ends last."""
        for role in Role:
            children = self.children(role)
            for child in children:
                child.stop()
            self._await_end(children)

    def kill(self) -> None:
        """End all children at once; also while `stop` waits, from a signal handler."""
        for child in self._children:
            child.stop(signal.SIGKILL)

    def wait(self) -> None:
        """Returns when all children have ended for good, which they do only when they are stopped."""
        pause = threading.Event()
        while not all(child.ended for child in self._children):
            pause.wait(1.0)

    def _await_end(self, children: Sequence[Child]) -> None:
        deadline = time.monotonic() + max((child.spec.grace_seconds for child in children), default=0.0)
        for child in children:
            if not child.join(max(0.0, deadline - time.monotonic())):
                self._report(f"{child.spec.name} did not stop in time and was killed")
                child.stop(signal.SIGKILL)
                child.join(KILLED_SECONDS)
