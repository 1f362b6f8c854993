"""Processes of the pool without the two seconds of their imports: a server for each kind has them, and forks.

1. The first process of a kind starts its *server*, `python -m tests.support.forked_worker`, which imports the module
   of that kind with all that it needs, and waits for orders on a socket.
2. For each order it forks. The child gets the order's environment and output, and runs the module's own `main` with
   the order's arguments, as `python -m` does.
3. The server is the parent of them all, so it is asked how they ended. They end with it, and it ends with pytest.

The product's own fork server (`rolloutpool_common.process.fork_server`) can't stand here: it makes workers the children
of the caller, and for that the caller takes over all orphans, also those whose end a test looks for.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rolloutpool_common.process.launch import PR_SET_PDEATHSIG

ROOT = Path(__file__).parents[2]
WORKER = "rolloutpool_worker.__main__"
LONGEST = 65_536
"""Bytes of an order: most of it is the environment."""


class ForkedWorker:
    """A worker, or another process of ours, that the server has forked; the part of `Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], output: Path, module: str = WORKER) -> None:
        """Starts the `main` of a module; its output is appended to a file."""
        order = {"arguments": [*arguments], "env": {**env}, "output": str(output)}
        self._server = _Server.of_this_process(module)
        self.pid: int = self._server.ask(order)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns `returncode`, after a look whether it has ended."""
        if self.returncode is None:
            self.returncode = self._server.ask({"ended": self.pid})
        return self.returncode

    def wait(self) -> int:
        """Waits for its end."""
        while (code := self.poll()) is None:
            time.sleep(0.01)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it without warning."""
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def forked(module: str, *arguments: str, **env: str) -> Iterator[tuple[ForkedWorker, Path]]:
    """A process that runs the `main` of a module and does not outlive the block, and the file with its output."""
    with tempfile.NamedTemporaryFile() as log:
        process = ForkedWorker(arguments, {**os.environ, **env}, Path(log.name), module)
        try:
            yield process, Path(log.name)
        finally:
            process.kill()
            process.wait()


class _Server:
    """The caller's side of the server."""

    _running: ClassVar[dict[tuple[int, str], "_Server"]] = {}

    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), module]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),), process_group=0)
        atexit.register(self._process.kill)

    @classmethod
    def of_this_process(cls, module: str) -> "_Server":
        # A forked child of pytest must not ask in its place.
        key = (os.getpid(), module)
        if key not in cls._running:
            cls._running[key] = cls(module)
        return cls._running[key]

    def ask(self, order: dict[str, Any]) -> Any:
        self._socket.send(json.dumps(order).encode())
        answer = self._socket.recv(LONGEST)
        assert answer, "the server of forked workers has ended"
        return json.loads(answer)


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Answers orders; returns in each process that it forks, with its order."""
    _end_with(os.getppid())
    ended: dict[int, int] = {}
    while message := orders.recv(LONGEST):
        order: dict[str, Any] = json.loads(message)
        if (asked := order.get("ended")) is not None:
            if asked not in ended:
                pid, status = os.waitpid(asked, os.WNOHANG)
                if pid:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            orders.send(json.dumps(ended.get(asked)).encode())
            continue
        if child := os.fork():
            # By both, because either may be first.
            os.setpgid(child, child)
            orders.send(json.dumps(child).encode())
        else:
            return order
    sys.exit(0)


def _prepare(module: str) -> None:
    """Imports a module with all that it will need."""
    importlib.import_module(module)
    if module == WORKER:
        from rolloutpool_common.rendering.loading import TINY, load_tokenizer
        from rolloutpool_worker.process import trial  # noqa: F401  imported for the workers
        from rolloutpool_worker.queue import app  # noqa: F401

        # Much of transformers is imported at the first load only.
        load_tokenizer(TINY)
    # What exists now is never collected, so that the collector does not touch, and thereby copy, the shared memory.
    gc.collect()
    gc.freeze()


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _become(order: dict[str, Any], server: int) -> None:
    """Makes this forked process what the order says."""
    _end_with(server)
    os.setpgid(0, 0)
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[:0] = [path for path in order["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv[1:] = order["arguments"]


def main(inherited: int, module: str) -> None:
    """Forks processes; in each of them, runs what the order says."""
    _prepare(module)
    server = os.getpid()
    with socket.socket(fileno=inherited) as orders:
        order = _serve(orders)
    _become(order, server)
    sys.exit(sys.modules[module].main())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
