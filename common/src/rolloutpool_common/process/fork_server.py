"""Workers without the wait for their imports: a process that has imported everything forks them.

A worker's imports take two seconds of CPU, most of them in transformers. Beside busy neighbours that is ten to twenty
seconds in which a dead worker has no successor. A fork takes milliseconds, and the imported modules lie in memory once
for all workers of a machine.

1. At the first request the parent starts the *fork server*: the worker's own command, with `--fork-server` and a
   socket. It imports what a worker needs and then waits. It has no event loop, no connection and no plug-in, so nothing
   that a rollout does can end it.
2. The parent sends the arguments of a worker. The server forks twice, and the process between ends at once. So the
   worker becomes an orphan, and the kernel gives it to the parent, which has asked for that
   (`PR_SET_CHILD_SUBREAPER`). It is then the parent's child like any other: the parent sees how it ends.
3. The worker asks the kernel to end it when its parent ends, sends its process id, and goes on as if it had been
   started with these arguments.
4. If the server ends, its workers live on, and the next request starts another server. If that fails too, or the system
   is not Linux, `ForkServer.start` raises OSError, and the caller runs the command itself.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rolloutpool_common.process.child import Child, ChildSpec, Role
from rolloutpool_common.process.launch import PR_SET_PDEATHSIG, SIGKILL

OPTION = "--fork-server"
"""Followed by the number of the inherited socket and the parent's process id."""
PR_SET_CHILD_SUBREAPER = 36
START_SECONDS = 120.0
"""How long a request may take. The first one includes the imports: 20 s were seen beside eight busy processes."""
FORK_SECONDS = 30.0
"""How long a later one may take. Nobody else gets a worker meanwhile, so a fork that fails must not hold up all."""
ORPHAN_SECONDS = 10.0
"""How long a forked worker waits until the kernel has given it to the parent."""
END_SECONDS = 5.0
LONGEST_MESSAGE = 65_536
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ForkedProcess:
    """A worker that the fork server made, as a child of this process; the part of `Popen` that `Child` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """As `Popen` has it: an exit code, or minus the number of a signal; None while it runs."""
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Returns `returncode`, after a look whether the process has ended."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Waits for the end of the process; returns its `returncode`."""
        with suppress(ChildProcessError):
            # Without reaping it, so that `poll` in another thread can do that meanwhile.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, options: int) -> int | None:
        with self._reaping:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, options)
                except ChildProcessError:
                    # Reaped elsewhere, so how it ended is not known. `Popen` says 0 then, too.
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode


class ForkServer:
    """The parent's side: starts the server when it is needed, and asks it for workers. Any thread may call it."""

    def __init__(self, command: Sequence[str], report: Callable[[str], None]) -> None:
        """Starts nothing yet."""
        self._command = list(command)
        self._report = report
        self.adopts = adopt_orphans()
        """Whether orphans come to this process."""
        self._server: Child | None = None
        self._socket: socket.socket | None = None
        self._asking = threading.Lock()
        self._stopped = False

    def start(self, arguments: Sequence[str]) -> ForkedProcess:
        """Forks a worker."""
        if not self.adopts:
            raise OSError("this system does not give orphans to their grandparents")
        with self._asking:
            # A server that has ended since the last request is replaced once.
            if self._server is not None and self._server.ended:
                self._end()
            try:
                return ForkedProcess(self._ask(arguments))
            except OSError as error:
                if not self._stopped:
                    self._report(f"the fork server failed ({error}); the worker is started without it")
                self._end()
                raise

    def stop(self) -> None:
        """Ends the server; its workers live on, and it makes no further ones. A request that waits fails at once."""
        self._stopped = True
        if (server := self._socket) is not None:
            # A worker that was forked just now can't say so any more, and ends.
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
        with self._asking:
            self._end()

    def _ask(self, arguments: Sequence[str]) -> int:
        if self._socket is None and not self._stopped:
            self._socket = self._serve()
        # Again: a stop that came meanwhile knew of no socket.
        if self._socket is None or self._stopped:
            raise OSError("it was stopped")
        self._socket.send(json.dumps(list(arguments)).encode())
        answer = self._socket.recv(LONGEST_MESSAGE)
        if not answer:
            raise OSError("it has ended")
        self._socket.settimeout(FORK_SECONDS)
        return int(answer)

    def _serve(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(START_SECONDS)
        with theirs:
            options = [OPTION, str(theirs.fileno()), str(os.getpid())]
            spec = ChildSpec(
                name="fork server",
                role=Role.WORKER,
                command=[*self._command, *options],
                pass_fds=(theirs.fileno(),),
            )
            # It is not started again when it ends: a new one needs a new socket.
            self._server = Child(spec, self._report)
            self._server.start()
        return ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.stop(signal.SIGKILL)
            self._server.join(END_SECONDS)
        self._socket = self._server = None


def serve_forks(inherited: int, parent: int) -> list[str]:
    """Serves as the fork server. It returns only in the workers that it forks."""
    # Where a manager of services signals all processes of a group, the server must stay until its parent has drained
    # the workers and ends it.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # What exists now is never collected, so that the collector does not touch, and thereby copy, the shared memory.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=inherited) as requests:
        while message := requests.recv(LONGEST_MESSAGE):
            if between := os.fork():
                os.waitpid(between, 0)
                continue
            if os.fork():
                os._exit(0)
            _become_child_of(parent)
            try:
                requests.send(str(os.getpid()).encode())
            except OSError:
                # The parent has stopped, and would not know of this worker.
                os._exit(0)
            return [str(argument) for argument in json.loads(message)]
    # The parent has closed its end.
    sys.exit(0)


def _become_child_of(parent: int) -> None:
    """Makes this forked process look as if the parent had started it."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        # Not `time.sleep`, which fails under libfaketime, by which the chaos campaign makes clocks jump.
        select.select([], [], [], 0.001)
    # If the parent ends between these two, the kernel tells nobody.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python gives each fork a new seed of its own; numpy does not, and tools may use it.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def adopt_orphans() -> bool:
    """Makes this process the parent of its descendants' orphans; returns whether the system can do that."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0)
