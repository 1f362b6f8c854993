"""Forked workers are children of this process like any other: they say who they are, end, and are seen to end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rolloutpool_common.process.fork_server import ForkServer

SERVER = """
import os, random, signal, sys, time
import numpy
from rolloutpool_common.process.fork_server import OPTION, serve_forks

out, option, inherited, parent = sys.argv[1:]
assert option == OPTION
arguments = serve_forks(int(inherited), int(parent))
what = arguments[0]
with open(f"{out}/{os.getpid()}", "w") as file:
    terminable = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    drawn = numpy.random.random(), random.random()
    print(arguments, os.getppid(), os.getpgid(0), terminable, *drawn, file=file)
os.rename(f"{out}/{os.getpid()}", f"{out}/{os.getpid()}.done")
if what == "sleep":
    time.sleep(60)
sys.exit(int(what))
"""


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def server(tmp_path: Path, reports: list[str]) -> Iterator[ForkServer]:
    made = ForkServer([sys.executable, "-c", SERVER, str(tmp_path)], reports.append)
    yield made
    made.stop()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for pid in map(int, children):
        with suppress(ProcessLookupError):
            if b"serve_forks" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def said(folder: Path, pid: int) -> list[str]:
    """What the worker wrote of itself, once it has."""
    file = folder / f"{pid}.done"
    wait(file.exists)
    return file.read_text().split()


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def server_pid(worker: int) -> int:
    """Of the fork server: the other child of this process that runs its script."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    threads = Path("/proc/self/task").iterdir()
    children += [pid for thread in threads for pid in (thread / "children").read_text().split()]
    return next(
        int(pid)
        for pid in children
        if int(pid) != worker and b"serve_forks" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_a_worker_is_a_child_of_the_parent_with_a_group_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    worker = server.start(["sleep", "a b"])
    assert worker.poll() is None
    assert said(tmp_path, worker.pid)[:6] == ["['sleep',", "'a", "b']", str(os.getpid()), str(worker.pid), "True"]
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM
    assert worker.poll() == worker.returncode == -signal.SIGTERM


def test_exit_codes_and_signals_are_seen(server: ForkServer, reports: list[str]) -> None:
    assert server.start(["0"]).wait() == 0
    assert server.start(["2"]).wait() == 2
    killed = server.start(["sleep"])
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert reports == []


def test_workers_draw_different_random_numbers(server: ForkServer, tmp_path: Path) -> None:
    drawn = [said(tmp_path, server.start(["0"]).pid)[-2:] for _ in range(3)]
    assert len({numpy for numpy, _ in drawn}) == len({python for _, python in drawn}) == 3


def test_workers_outlive_their_server_and_the_next_request_gets_a_new_one(
    server: ForkServer, tmp_path: Path, reports: list[str]
) -> None:
    first = server.start(["sleep"])
    said(tmp_path, first.pid)
    pid = server_pid(first.pid)
    # A manager of services may signal every process: the server stays until its parent ends it.
    os.kill(pid, signal.SIGTERM)
    second = server.start(["sleep"])
    os.kill(pid, signal.SIGKILL)
    # Once its parent knows: until then a worker is started without it.
    wait(lambda: server._server is not None and server._server.ended)
    third = server.start(["sleep"])
    assert server_pid(third.pid) != pid
    for worker in (first, second, third):
        assert worker.poll() is None
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    assert reports == []


def test_a_server_that_ends_at_once_is_an_error(reports: list[str]) -> None:
    server = ForkServer([sys.executable, "-c", "pass"], reports.append)
    with pytest.raises(OSError, match=r"."):
        server.start(["sleep"])
    (report,) = reports
    assert "is started without it" in report
    server.stop()


def test_a_server_that_is_stopped_while_it_imports_makes_no_worker(tmp_path: Path, reports: list[str]) -> None:
    """Its worker came up 44 s later, and took work."""
    slow = f"import os, sys, time\nopen({str(tmp_path / 'imports')!r}, 'w').close()\ntime.sleep(1)\n" + SERVER
    server = ForkServer([sys.executable, "-c", slow, str(tmp_path)], reports.append)
    failed: list[OSError] = []

    def ask() -> None:
        try:
            server.start(["sleep"])
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait((tmp_path / "imports").exists)
    server.stop()
    asking.join(20)
    assert not asking.is_alive()
    assert failed
    assert reports == []
    with pytest.raises(OSError, match="stopped"):
        server.start(["sleep"])
    assert [path for path in tmp_path.iterdir() if path.name.isdigit()] == []


def test_a_system_without_adoption_is_an_error(monkeypatch: pytest.MonkeyPatch, reports: list[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    server = ForkServer([sys.executable, "-c", "pass"], reports.append)
    assert not server.adopts
    with pytest.raises(OSError, match="orphans"):
        server.start(["sleep"])
    assert reports == []


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from rolloutpool_common.process.fork_server import ForkServer
server = ForkServer([sys.executable, "-c", {SERVER!r}, {str(tmp_path)!r}], print)
print(server.start(["sleep"]).pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdout, parent.stdin:
        worker = int(parent.stdout.readline())
        said(tmp_path, worker)
        parent.kill()
        parent.wait()

        def ended() -> bool:
            try:
                return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                return True

        wait(ended)
