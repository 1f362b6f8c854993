"""Failpoints: nothing unless armed; armed, the process is gone at exactly that place."""

import os
import signal
import subprocess
import sys

import pytest

from rolloutpool_common.process import failpoints

PROGRAM = """
from rolloutpool_common.process.failpoints import hit
for number in range(1, 10_000):
    print(number, flush=True)
    hit("worker.turn_before_tools")
    hit("worker.obs_before_call")
"""


def run(armed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, failpoints.VARIABLE: armed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ends_at_the_nth_pass() -> None:
    ended = run("worker.turn_before_tools:3")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["1", "2", "3"]
    assert ended.stderr == "failpoint worker.turn_before_tools\n"


def test_ends_by_chance() -> None:
    ended = run("worker.turn_before_tools:0.01, worker.obs_before_call:20000")
    assert ended.returncode == -signal.SIGKILL
    # 10,000 passes at 1 % each: surviving them has probability 1e-44.
    assert ended.stderr == "failpoint worker.turn_before_tools\n"


def test_nothing_happens_unarmed() -> None:
    ended = run("")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_place_that_does_not_exist_is_refused_at_the_start() -> None:
    ended = run("worker.lunch:1")
    assert ended.returncode == 1
    assert "no failpoint 'worker.lunch'" in ended.stderr


def test_each_place_is_in_the_code() -> None:
    """A name that nobody passes would make a campaign look harder than it is."""
    pytest.importorskip("rolloutpool_worker")
    import rolloutpool_api
    import rolloutpool_worker

    roots = [os.path.dirname(module.__file__ or "") for module in (rolloutpool_api, rolloutpool_worker)]
    text = subprocess.run(
        ["grep", "-rhoE", r'failpoints\.hit\("[a-z_.]+"\)', *roots, "--include=*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {line.split('"')[1] for line in text.split()} == failpoints.NAMES
