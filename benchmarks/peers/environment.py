"""An environment for each peer, made by pip alone: a venv under `build/peers/`, kept until its requirements change.

1. The first interpreter that is new enough is taken: `PEERS_PYTHON`, this one, those on the PATH, pyenv's.
2. It makes the venv, and the venv's pip installs what the peer's file of requirements names.
3. The file is copied into the venv at the end. A venv with the same copy is complete, and is used as it is.

Whatever of this is not to be had is a reason that the peer's row gives: nothing here fails the run.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.catalogue import Peer
from benchmarks.processes import ROOT

FOLDER = ROOT / "build" / "peers"
REQUIREMENTS = ROOT / "benchmarks" / "peers" / "requirements"
INSTALLS_WITHIN_SECONDS = 1800.0
MINORS = range(11, 20)


class NotToBeHad(Exception):
    """A part of a peer's environment is missing on this machine; the message says which."""


@dataclass(frozen=True)
class Environment:
    """A complete venv."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")


def prepare(peer: Peer, folder: Path = FOLDER) -> Environment:
    """Makes the peer's environment, or returns the one that is there. Raises NotToBeHad."""
    environment = Environment(folder / peer.environment)
    requirements = REQUIREMENTS / f"{peer.environment}.txt"
    complete = environment.folder / "requirements.txt"
    if complete.exists() and complete.read_bytes() == requirements.read_bytes():
        return environment
    python = find_python(peer.least_python)
    shutil.rmtree(environment.folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{peer.name}: making {environment.folder.relative_to(folder.parent)}", file=sys.stderr, flush=True)
    _run([python, "-m", "venv", str(environment.folder)], "a venv cannot be made")
    pip = [environment.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--requirement", str(requirements)], "pip cannot install it")
    shutil.copyfile(requirements, complete)
    return environment


def find_python(least: tuple[int, int]) -> str:
    """Returns the path of an interpreter that is at least so new. Raises NotToBeHad."""
    for candidate in _candidates():
        if (found := _version(candidate)) is not None and found >= least:
            return candidate
    raise NotToBeHad(f"it needs Python {least[0]}.{least[1]}, and there is none here (PEERS_PYTHON names one)")


def _candidates() -> Iterator[str]:
    if named := os.environ.get("PEERS_PYTHON"):
        yield named
    yield sys.executable
    for minor in MINORS:
        if found := shutil.which(f"python3.{minor}"):
            yield found
    if (pyenv := shutil.which("pyenv")) is not None:
        root = subprocess.run([pyenv, "root"], check=False, capture_output=True, text=True).stdout.strip()
        yield from (str(path) for path in sorted(Path(root, "versions").glob("3.*/bin/python")))


def _version(python: str) -> tuple[int, int] | None:
    ask = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
    try:
        told = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        # A shim of pyenv is on the PATH and runs nothing.
        return None
    major, minor = map(int, told.split())
    return major, minor


def _run(command: list[str], failure: str) -> None:
    try:
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALLS_WITHIN_SECONDS, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{failure} within {INSTALLS_WITHIN_SECONDS:.0f} s") from None
    if ended.returncode != 0:
        # The last line alone: those before name registries and folders.
        last = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")][-1:] or ["no reason given"]
        raise NotToBeHad(f"{failure}: {last[0].removeprefix('ERROR: ')}")
