"""One run of tests in a copy of the tree, and what it says of the mutant in it."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants.mutant import ROOT
from tests.mutants.tree import environment

PASSED, FAILED, INTERRUPTED = 0, 1, 2
"""Exit codes of pytest. The last one is also that of a module which fails while it is imported. All others say that the
tests were not run as they should."""
GRACE_SECONDS = 10.0
"""For pytest to end what its tests have started, before it is killed."""
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[\w:]+)?)", re.MULTILINE)


class Result(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    """Its tests hung past the limit, which kills it as well."""
    ALIVE = "alive"
    BROKEN = "broken"
    """Nothing is known: its text is not there once, or its tests fail without it."""


@dataclass(frozen=True)
class Trial:
    """One run of tests."""

    result: Result
    seconds: float
    test: str = ""
    """The test that failed, without its parameters; its module, where that could not be imported."""
    said: str = ""
    """The end of its output."""


def run_tests(root: Path, tests: Sequence[str], limit_s: float) -> Trial:
    """Runs tests in a copy of the tree, up to the first failure."""
    command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "pytest", "-x", "-q", "-p", "tests.mutants.origin"]
    # Property tests try the same examples each time, or a mutant could be killed today and live tomorrow.
    command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    start = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Trial(Result.TIMEOUT, time.monotonic() - start, said=_end(process))
    seconds = time.monotonic() - start
    if process.returncode == PASSED:
        return Trial(Result.ALIVE, seconds, said=said[-2000:])
    failure = _FAILURE.search(said)
    if process.returncode not in (FAILED, INTERRUPTED) or failure is None:
        return Trial(Result.BROKEN, seconds, said=said[-2000:])
    return Trial(Result.KILLED, seconds, failure[1], said[-2000:])


def _end(process: subprocess.Popen[str]) -> str:
    """Interrupts pytest, so that its fixtures end their servers; then kills what is left of its session."""
    process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    return said[-2000:]
