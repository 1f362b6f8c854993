"""Children are real processes; what they do is told by pipes and files, never by time passing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rolloutpool_common.process import child as module
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.child import Child, ChildSpec, Role
from rolloutpool_common.process.supervisor import ChildNotReady, Supervisor

SLEEPER = [sys.executable, "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]
STUBBORN = [
    *(sys.executable, "-S", "-c"),
    "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()",
]


MakeSpec = Callable[..., ChildSpec]


class Reports:
    """What the supervisor told, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait(self, count: int) -> None:
        """Until so many lines were told."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.lines) >= count, 20)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def supervisor(reports: Reports) -> Iterator[Supervisor]:
    made = Supervisor(reports)
    yield made
    made.kill()
    made.wait()


@pytest.fixture
def spec(tmp_path: Path) -> MakeSpec:
    def make(name: str = "child", command: list[str] = SLEEPER, role: Role = Role.WORKER, **env: str) -> ChildSpec:
        return ChildSpec(name=name, role=role, command=command, log=tmp_path / f"{name}.log", env=env)

    return make


@pytest.fixture
def up(supervisor: Supervisor, spec: MakeSpec) -> Callable[..., Child]:
    """Starts a child with this specification, and waits until it says `up`."""

    def start(*arguments: Any, **options: Any) -> Child:
        child = supervisor.start(spec(*arguments, **options))
        supervisor.wait_ready([child], said(child, "up"), 20)
        return child

    return start


def said(child: Child, text: str) -> Callable[[], bool]:
    """Whether the child's log has the text."""
    log = child.spec.log
    assert log is not None
    return lambda: text in log.read_text()


def test_a_child_gets_its_environment_and_a_process_group(supervisor: Supervisor, spec: MakeSpec) -> None:
    script = (
        "import os; print(os.environ['WORD'], os.getpgid(0) == os.getpid(), flush=True); import signal; signal.pause()"
    )
    child = supervisor.start(spec(command=[sys.executable, "-S", "-c", script], WORD="hello"))
    supervisor.wait_ready([child], said(child, "hello True"), 20)
    assert child.pid is not None


def test_an_early_end_is_an_error_with_the_log(supervisor: Supervisor, spec: MakeSpec) -> None:
    script = "import sys; print('old line'); sys.exit('the port is taken')"
    child_spec = spec(command=[sys.executable, "-S", "-c", script])
    with pytest.raises(
        ChildNotReady, match=r"child ended \(exit code 1\) before it was ready(.|\n)*\| the port is taken"
    ):
        supervisor.wait_ready([supervisor.start(child_spec)], lambda: False, 20)


def test_one_that_ended_is_an_error_though_another_one_answers(supervisor: Supervisor, spec: MakeSpec) -> None:
    child = supervisor.start(spec(command=[sys.executable, "-S", "-c", "raise SystemExit(2)"]))
    assert child.join(20)
    with pytest.raises(ChildNotReady, match="exit code 2"):
        supervisor.wait_ready([child], lambda: True, 20)


def test_the_log_of_an_earlier_run_is_not_blamed(supervisor: Supervisor, spec: MakeSpec) -> None:
    child_spec = spec(command=[sys.executable, "-S", "-c", "raise SystemExit(3)"])
    assert child_spec.log is not None
    child_spec.log.write_text("yesterday\n")
    with pytest.raises(ChildNotReady, match="it wrote nothing"):
        supervisor.wait_ready([supervisor.start(child_spec)], lambda: False, 20)
    assert child_spec.log.read_text() == "yesterday\n"


def test_a_program_that_is_not_there_is_an_error(supervisor: Supervisor, spec: MakeSpec) -> None:
    child = supervisor.start(spec(command=["/no/such/program"]))
    with pytest.raises(ChildNotReady, match="cannot run /no/such/program: No such file"):
        supervisor.wait_ready([child], lambda: False, 20)


def test_a_child_that_is_never_ready_is_an_error(supervisor: Supervisor, spec: MakeSpec) -> None:
    child = supervisor.start(spec())
    with pytest.raises(ChildNotReady, match="not ready, and no progress for 0 s"):
        supervisor.wait_ready([child], lambda: False, 0)


def test_people_are_told_once_what_is_waited_for(
    supervisor: Supervisor, spec: MakeSpec, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Supervisor.__module__}.NOTE_SECONDS", 0.0)
    child = supervisor.start(spec(command=[sys.executable, "-S", "-c", "while True: pass"]))
    looks = iter([False] * 5)
    supervisor.wait_ready([child], lambda: next(looks, True), 20)
    assert reports.lines == ["still waiting for child, which last wrote\n  | (it wrote nothing)"]


@pytest.mark.slow
def test_a_child_that_gets_on_has_time(supervisor: Supervisor, spec: MakeSpec, tmp_path: Path) -> None:
    """It used to be ended by the clock, however little of the machine it had got."""
    # It takes four seconds, and a quarter of one of the CPU in each.
    busy = """
import pathlib, sys, time
for round in range(1, 21):
    while time.process_time() < 0.05 * round: pass
    time.sleep(0.15)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
    done = tmp_path / "done"
    child = supervisor.start(spec(command=[sys.executable, "-S", "-c", busy, str(done)]))
    supervisor.wait_ready([child], done.exists, timeout=1.5)
    # One that is ready for nothing, and keeps a core busy, is given up all the same.
    spins = supervisor.start(spec("spins", [sys.executable, "-S", "-c", "while True: pass"]))
    with pytest.raises(ChildNotReady):
        supervisor.wait_ready([spins], lambda: False, timeout=0.4)


def test_who_stops_starts_nothing(supervisor: Supervisor, spec: MakeSpec, tmp_path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        """A fork server whose imports take long."""

        def start(self, arguments: object) -> None:
            asked.set()
            answer.wait(60)
            raise OSError("it was stopped")

    made = tmp_path / "made"
    slow = replace(spec(command=["touch", str(made)]), fork_server=cast(Any, Slow()))
    starting = threading.Thread(target=supervisor.start, args=(slow,), kwargs={"ready": True})
    starting.start()
    assert asked.wait(20)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    answer.set()
    for thread in (stopping, starting):
        thread.join(20)
        assert not thread.is_alive()
    assert not made.exists()
    # The next pool of the same object starts as the first one did.
    again = supervisor.start(spec("again", ["touch", str(made)]))
    supervisor.wait_ready([again], made.exists, timeout=20)


def test_a_crashed_child_is_started_again(
    supervisor: Supervisor, up: Callable[..., Child], reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART", Backoff(first_s=0.01, longest_s=15.0, jitter=False))
    child = up()
    first = child.pid
    child.send(signal.SIGKILL)
    reports.wait(1)
    supervisor.wait_ready([child], said(child, "up\nup"), 20)
    assert child.pid not in (None, first)
    assert len(reports.lines) == 1
    assert "child ended (SIGKILL); starting it again in 0.01 s" in reports.lines[0]


def test_delays_grow(supervisor: Supervisor, spec: MakeSpec, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART", Backoff(first_s=0.01, longest_s=0.04, jitter=False))
    supervisor.start(spec(command=[sys.executable, "-S", "-c", "raise SystemExit(1)"])).now_ready()
    reports.wait(4)
    delays = [line.partition("again in ")[2].partition(" s;")[0] for line in reports.lines[:4]]
    assert delays == ["0.01", "0.02", "0.04", "0.04"]


def test_a_stopped_child_stays_away(supervisor: Supervisor, up: Callable[..., Child], reports: Reports) -> None:
    child = up()
    supervisor.stop_child(child)
    assert child.ended
    assert child.pid is None
    assert reports.lines == []


def test_children_stop_in_order(supervisor: Supervisor, up: Callable[..., Child], tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    script = (
        "import os, signal, sys\n"
        f"def end(*_):\n with open({str(ends)!r}, 'a') as f: f.write(os.environ['NAME'] + ' ')\n os._exit(0)\n"
        "signal.signal(15, end); print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    command = [sys.executable, "-S", "-c", script]
    for role in (Role.REDIS, Role.API, Role.FLOWER, Role.WORKER):
        up(role.name, command, role, NAME=role.name)
    supervisor.stop()
    assert ends.read_text() == "WORKER API FLOWER REDIS "


def test_a_child_that_does_not_stop_is_killed(
    supervisor: Supervisor, up: Callable[..., Child], reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.GRACE_SECONDS, Role.API, 0.01)
    child = up(command=STUBBORN, role=Role.API)
    supervisor.stop()
    assert child.ended
    assert reports.lines == ["child did not stop in time and was killed"]


def test_kill_does_not_wait(supervisor: Supervisor, up: Callable[..., Child]) -> None:
    child = up(command=STUBBORN)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    supervisor.kill()
    stopping.join(10)
    assert child.ended


@pytest.mark.parametrize(("drain", "grace"), [("5", 35.0), ("", 30.0), ("soon", 30.0)])
def test_a_worker_has_its_drain_time_to_stop(spec: MakeSpec, drain: str, grace: float) -> None:
    assert spec(ROLLOUTPOOL_DRAIN_SECONDS=drain).grace_seconds == grace
    assert spec().grace_seconds == 60.0


def test_nothing_survives_a_killed_supervisor(tmp_path: Path) -> None:
    """The child holds the writing end of a pipe: its end is the end of the pipe."""
    read, write = os.pipe()
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from rolloutpool_common.process.child import ChildSpec, Role\n"
        "from rolloutpool_common.process.supervisor import Supervisor\n"
        "supervisor = Supervisor()\n"
        f"child = supervisor.start(ChildSpec(name='c', role=Role.API, command={STUBBORN!r}, pass_fds=({write},),\n"
        f"    log=Path({str(tmp_path / 'log')!r})))\n"
        "supervisor.wait_ready([child], lambda: 'up' in child.spec.log.read_text(), 20)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", script], pass_fds=(write,), check=False)
        os.close(write)
        assert done.returncode == -signal.SIGKILL
        assert os.read(read, 1) == b""
    finally:
        os.close(read)


def test_a_first_process_that_refuses_to_start_has_no_second(
    supervisor: Supervisor, spec: MakeSpec, reports: Reports
) -> None:
    refusing = replace(spec(command=[sys.executable, "-S", "-c", "raise SystemExit(2)"]), refusal=2)
    child = supervisor.start(refusing, ready=True)
    assert supervisor.wait_first() is child
    assert child.exit_code == 2
    assert reports.lines == []


def test_a_later_refusal_is_a_crash_like_others(
    supervisor: Supervisor,
    spec: MakeSpec,
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(module, "RESTART", Backoff(first_s=0.01, longest_s=0.01, jitter=False))
    script = (
        f"import os, sys; again = os.path.exists({str(tmp_path / 'again')!r})\n"
        f"open({str(tmp_path / 'again')!r}, 'w').close(); sys.exit(2 if again else 1)"
    )
    supervisor.start(replace(spec(command=[sys.executable, "-S", "-c", script]), refusal=2), ready=True)
    reports.wait(3)
    assert "exit code 1" in reports.lines[0]
    assert "exit code 2" in reports.lines[2]


def test_the_second_signal_reaches_the_children_and_the_third_kills(
    supervisor: Supervisor, up: Callable[..., Child]
) -> None:
    script = (
        "import signal; signal.signal(15, lambda *_: print('told', flush=True)); print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    child = up(command=[sys.executable, "-S", "-c", script])
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    supervisor.wait_ready([child], said(child, "told"), 20)
    supervisor.hurry()
    supervisor.wait_ready([child], said(child, "told\ntold"), 20)
    supervisor.hurry()
    stopping.join(10)
    assert child.exit_code == -signal.SIGKILL
