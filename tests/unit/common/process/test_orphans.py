"""A zombie that stays is reaped; one that its parent's thread is about to reap is left to it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rolloutpool_common.process.orphans import Orphans, reap_orphans


def zombie() -> subprocess.Popen[bytes]:
    """A child that has ended and that nothing has waited for."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def test_a_zombie_is_reaped_at_the_second_look() -> None:
    child = zombie()
    orphans = Orphans()
    assert child.pid not in orphans.reap()
    assert Path(f"/proc/{child.pid}").exists()
    assert child.pid in orphans.reap()
    assert not Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_a_child_that_somebody_waits_for_is_never_taken() -> None:
    """However late its thread is: its exit code says how a worker died."""
    child = zombie()
    orphans = Orphans(spare=lambda: [child.pid])
    assert [orphans.reap() for _ in range(3)] == [set()] * 3
    assert child.wait() == 0
    assert child.returncode == 0


def test_a_child_that_runs_or_is_anothers_is_left_alone(tmp_path: Path) -> None:
    for pid, state, parent in ((10, "S", os.getpid()), (11, "Z", 1), (12, "Z", os.getpid())):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) {state} {parent} 1 1 0")
    (tmp_path / "13").mkdir()
    (tmp_path / "meminfo").write_text("")
    orphans = Orphans(tmp_path)
    # Without a zombie nothing is searched.
    assert orphans.reap() == orphans.reap() == set()
    child = zombie()
    assert orphans.reap() == set()
    assert orphans.reap() == {12}
    child.wait()


def test_only_a_process_that_orphans_come_to_reaps() -> None:
    child = zombie()
    reap_orphans()
    assert os.waitpid(child.pid, os.WNOHANG) == (child.pid, 0)
    child.returncode = 0
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


def test_adopted_orphans_are_reaped() -> None:
    script = """
import os, subprocess, sys, time
from rolloutpool_common.process.fork_server import adopt_orphans
from rolloutpool_common.process.orphans import reap_orphans
assert adopt_orphans()
reap_orphans(adopted=True)
orphan = int(subprocess.check_output([sys.executable, "-S", "-c", "import os; print(os.fork() or '')"]).split()[0])
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.05)
print("reaped")
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=30)
    assert done.stdout == "reaped\n", done.stderr
