"""One child process: how to start it, and the thread that watches it.

Nothing survives this process: a child dies with the thread that watches it, and on Linux with this process, even after
kill -9 (`launch.py`). Children are in process groups of their own, so that Ctrl-C reaches this process only.

A worker gets a new id from its parent at each start, and its end is reported under this id (`obituaries.py`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rolloutpool_common.process import launch
from rolloutpool_common.process.backoff import Backoff

if TYPE_CHECKING:
    # It needs Redis' client, which a trainer without a pool of its own does not install.
    from rolloutpool_common.process.obituaries import Obituaries

RESTART = Backoff(first_s=0.5, longest_s=15.0, jitter=False)
"""Between a crash of a child and its next start."""
STEADY_SECONDS = 10.0
"""A child that lived this long starts again without the delay of earlier crashes: it can start, and what ended it later
may not end it again."""
TAIL_LINES = 20


class Started(Protocol):
    """A process that runs, as far as `Child` needs it: a `Popen`, or a worker that was forked."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Returns its exit code, or minus the number of a signal; None while it runs."""
        ...

    def wait(self) -> int:
        """Waits for its end, and returns that."""
        ...


class WorkerForks(Protocol):
    """Holds what forks workers (`fork_server`)."""

    def start(self, arguments: Sequence[str]) -> Started:
        """WorkerForks a worker; raises `OSError` where that is not possible."""
        ...


class Role(IntEnum):
    """Says what a child is. Children are stopped in this order."""

    WORKER = 0
    """First, because it needs all others to finish its rollouts or to give them back."""
    API = 1
    FLOWER = 2
    REDIS = 3
    """Last, because it keeps what the others write."""


GRACE_SECONDS = {Role.WORKER: 30.0, Role.API: 10.0, Role.FLOWER: 5.0, Role.REDIS: 10.0}
"""How long a child may take to stop before it is killed. A worker's drain time is added."""
DRAIN_VARIABLE, DRAIN_SECONDS = "ROLLOUTPOOL_DRAIN_SECONDS", 30.0


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to start a child."""

    name: str
    role: Role
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to this process' environment. Secrets go here, never into `command`."""
    log: Path | None = None
    """File to append the output to; None leaves the output where that of this process goes."""
    pass_fds: tuple[int, ...] = ()
    niceness: int = 0
    """Above 0 for a process that may wait when the machine is busy."""
    obituaries: "Obituaries | None" = field(default=None, repr=False)
    """For a worker: gives it an id at each start, as further arguments, and reports its end."""
    fork_server: WorkerForks | None = field(default=None, repr=False)
    """WorkerForks the process, with the further arguments. Where it can't, `command` is run."""
    refusal: int | None = None
    """If the first process ends with this exit code, there is no second: its settings can't be used, and it said so."""

    @property
    def environment(self) -> dict[str, str]:
        """All variables of the child: those of this process and `env`."""
        return {**os.environ, **self.env}

    @property
    def grace_seconds(self) -> float:
        """Seconds that it may take to stop before it is killed; a worker's drain time is part of them."""
        grace = GRACE_SECONDS[self.role]
        if self.role is not Role.WORKER:
            return grace
        try:
            return grace + float(self.environment.get(DRAIN_VARIABLE, DRAIN_SECONDS))
        except ValueError:
            # The worker refuses to start with such a setting, and its log says so.
            return grace


class Child:
    """One supervised process, started by `Supervisor.start`.

    A thread watches it, in three phases:

    1. *Starting*, until `now_ready`: if the process ends, the child has failed, and `failure` says why.
    2. *Running*: if the process ends, that is a crash. It is reported, and the process is started again after a delay
       that doubles with each crash. Only a first process that refuses to start (`ChildSpec.refusal`) is not.
    3. *Stopping*, from `stop` on: the process ends for good, and so does the thread.
    """

    def __init__(self, spec: ChildSpec, report: Callable[[str], None], *, ready: bool = False) -> None:
        """Starts nothing yet; `start` does."""
        self.spec = spec
        self._report = report
        self._process: Started | None = None
        self._log_start = 0
        self._end = ""
        self.exit_code: int | None = None
        """How its last process ended: the exit code, or minus the signal; None if none has ended."""
        self.worker_id: str | None = None
        """The id of the worker that runs or ran last; None for other processes."""
        self._stop_signal = signal.SIGTERM
        self._stopping = threading.Event()
        self._spawned = threading.Event()
        self._steady = threading.Event()
        if ready:
            self._steady.set()
        # This thread also starts the process: for the kernel the thread that forks is the parent, with which the child
        # dies (see `launch.py`), and it has to live as long as the child.
        self._thread = threading.Thread(target=self._watch, name=f"watch {spec.name}", daemon=True)

    def start(self) -> None:
        """Starts the process, unless it was stopped before; returns when it runs or has failed."""
        self._thread.start()
        self._spawned.wait()

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        # Read once, because the watching thread replaces it after a crash.
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def ended(self) -> bool:
        """Whether it has ended for good: it was stopped, ended before it was ready, or refused to start."""
        return not self._thread.is_alive()

    def now_ready(self) -> None:
        """Ends the starting phase: from now on a process that ends is started again."""
        self._steady.set()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process group; does nothing if the process has ended."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Asks the process to end for good; `join` waits for that."""
        # Before the signal: otherwise the watching thread could take the end for a crash and start the process again.
        self._stop_signal = number
        self._stopping.set()
        self.send(number)

    def join(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether the child has ended for good."""
        self._thread.join(timeout)
        return self.ended

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Returns the last lines that the child wrote since it was first started."""
        if self.spec.log is None or not self.spec.log.exists():
            return "  | (it has no log)"
        with self.spec.log.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode("utf-8", "replace")
        tail = text.rstrip().splitlines()[-lines:]
        return "\n".join(f"  | {line}" for line in tail) or "  | (it wrote nothing)"

    def failure(self) -> str:
        """Says why the child could not start, with the end of its log."""
        where = f"; its log {self.spec.log} ends with" if self.spec.log else ""
        return f"{self.spec.name} ended ({self._end}) before it was ready{where}:\n{self.log_tail()}"

    def _watch(self) -> None:
        crashes = 0
        while True:
            started = time.monotonic()
            how = self._run_once()
            if self._stopping.is_set() or not self._steady.is_set():
                return
            if crashes == 0 and self.exit_code is not None and self.exit_code == self.spec.refusal:
                return
            if time.monotonic() - started > STEADY_SECONDS:
                crashes = 0
            crashes += 1
            delay = RESTART.delay_s(crashes)
            log = f"; log: {self.spec.log}" if self.spec.log else ""
            self._report(f"{self.spec.name} ended ({how}); starting it again in {delay:g} s{log}")
            # Wakes at once when the child is stopped during the delay.
            if self._stopping.wait(delay):
                return

    def _run_once(self) -> str:
        """Starts the process and waits for its end; returns how it ended."""
        try:
            if self._stopping.is_set():
                return "stopped before its start"
            self._process = self._spawn()
        except OSError as error:
            self._end = f"cannot start: {error}"
            return self._end
        finally:
            self._spawned.set()
        # A stop that came while the process was being started could not send its signal.
        if self._stopping.is_set():
            self.send(self._stop_signal)
        self.exit_code = code = self._process.wait()
        self._end = _exit_text(code)
        if self.spec.obituaries is not None and self.worker_id is not None:
            stopping = self._stopping.is_set()
            self.spec.obituaries.report(
                self.worker_id,
                code,
                told_to_stop=stopping,
                killed_by_us=stopping and self._stop_signal == signal.SIGKILL,
            )
        return self._end

    def _spawn(self) -> Started:
        identity: list[str] = []
        if self.spec.obituaries is not None:
            # New at each start, so that a worker is never taken for the one that died before it.
            self.worker_id, identity = self.spec.obituaries.name_worker()
        if self.spec.fork_server is not None:
            with contextlib.suppress(OSError):
                return self.spec.fork_server.start(identity)
            # The request may have failed because of the stop, and may have taken a minute.
            if self._stopping.is_set():
                raise OSError("stopped meanwhile")
        return self._run_command(identity)

    def _run_command(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        # Isolated (-I) and without site-packages (-S): each child of the pool waits until this interpreter has started.
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(self.spec.niceness)]
        output = None
        try:
            if self.spec.log is not None:
                output = self.spec.log.open("ab")
                # At the first start only: the log is appended to, and may begin with an earlier run's lines.
                if not self._spawned.is_set():
                    self._log_start = output.tell()
            return subprocess.Popen(
                [*launcher, *self.spec.command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=self.spec.environment,
                pass_fds=self.spec.pass_fds,
                process_group=0,
            )
        # The child writes to a copy of its own.
        finally:
            if output is not None:
                output.close()


def _exit_text(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
