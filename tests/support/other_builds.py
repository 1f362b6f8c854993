"""Builds of other commits of this repository, run from their sources in the environment of this one."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "acceptance" / "builds.txt"
PARTS = ("common", "api", "worker", "trainer", "rl")


def listed_builds() -> list[str]:
    """The commits in `builds.txt`."""
    lines = (line.split("#")[0].split() for line in LIST.read_text().splitlines())
    return [words[0] for words in lines if words]


class CommitMissing(LookupError):
    """This clone does not have the commit."""


def sources_of(commit: str, directory: Path) -> Path:
    """Lays out a commit's sources; skips the test where this clone does not have the commit."""
    try:
        return lay_out(commit, directory)
    except CommitMissing as missing:
        pytest.skip(str(missing))


def lay_out(commit: str, directory: Path) -> Path:
    """Lays out a commit's sources; raises `CommitMissing`."""
    looked_up = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(looked_up, cwd=ROOT, capture_output=True, check=False).returncode:
        raise CommitMissing(
            f"commit {commit[:9]} is not in this clone, which may be shallow; `git fetch --unshallow` gets it"
        )
    folders = [f"{part}/src" for part in PARTS]
    archive = subprocess.run(["git", "archive", commit, *folders], cwd=ROOT, capture_output=True, check=True).stdout
    # Not by tarfile: Debian's Python 3.11.2 knows no filter yet, and later ones warn without.
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "--extract"], cwd=directory, input=archive, check=True)
    return directory


def with_sources(sources: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which Python imports these sources, and not the installed ones."""
    return {**os.environ, **(environment or {}), "PYTHONPATH": python_path(sources)}


def python_path(sources: Path) -> str:
    """What Python's search path begins with, so that it imports these sources."""
    return os.pathsep.join(str(sources / part / "src") for part in PARTS)
