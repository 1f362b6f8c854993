"""`rolloutpool agent try`, as a user runs it: a program of theirs, no model, nothing else started before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutpool_common.protocol.result import RolloutResult

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} {ROOT / 'tests' / 'support' / 'small_program.py'} {{prompt}}"


def tried(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("rolloutpool")), "agent", "try", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=120)


def test_a_program_is_tried_and_its_lines_are_printed() -> None:
    done = tried(PROGRAM, "say hi")
    assert done.returncode == 0, done.stderr
    assert "line 1: main, 2 turns" in done.stdout
    assert "sample 1: prompt " in done.stdout


@pytest.mark.slow
def test_as_a_document_it_is_the_result() -> None:
    done = tried(PROGRAM, "say hi", "--json")
    assert done.returncode == 0, done.stderr
    result = RolloutResult.model_validate(json.loads(done.stdout))
    assert len(result.samples) == 1


def test_a_program_that_is_not_there_says_so() -> None:
    done = tried("/no/such/program", "say hi")
    assert done.returncode == 2
    assert "no preset and no program" in done.stderr
    assert "claude-code, codex" in done.stderr


@pytest.mark.slow
def test_a_program_that_fails_shows_what_it_has_printed() -> None:
    done = tried("bash -c 'echo it hurts; exit 3'", "say hi")
    assert done.returncode == 1
    assert "ended with code 3, at its first start" in done.stdout
    assert "it hurts" in done.stderr
