"""The CPU time of each process counts for its role, also where the process has changed its command line."""

import subprocess
import sys

import pytest
from benchmarks.cpu import Usage

BUSY = "import sys, time\n{}\nprint('on', flush=True)\nwhile time.process_time() < 0.3: pass\nsys.stdin.read()"
TITLE = "import setproctitle\nsetproctitle.setproctitle('[celeryd: worker-1@host:MainProcess] -active- (--id w)')"


@pytest.mark.parametrize(
    ("command", "role"),
    [(["-c", BUSY.format(TITLE)], "worker"), (["-c", BUSY.format(""), "-m", "rolloutpool_api"], "api")],
)
def test_a_process_is_known_by_what_it_runs(command: list[str], role: str) -> None:
    with subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert (process.pid, role) in Usage().by_process
        process.kill()
