"""The other side's packages: a git worktree of a commit in build/pairs, with an environment of its own lock."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT

FOLDER = ROOT / "build" / "pairs"
INSTALLED = Path(".venv", ".installed")
"""What `make install` leaves once it is complete."""


@dataclass(frozen=True)
class Side:
    """One side of a pair."""

    name: str
    root: Path

    @property
    def python(self) -> Path:
        """The interpreter that imports its packages."""
        return self.root / ".venv" / "bin" / "python"


def this_side() -> Side:
    """Returns the working tree."""
    return Side("working tree", ROOT)


def other_side(revision: str) -> Side:
    """Returns a commit, laid out and installed; the second time it is there already.

    Args:
        revision: As git understands it.

    Raises:
        CalledProcessError: Git knows no such commit, or its installation fails.
    """
    sha = _git("rev-parse", "--verify", f"{revision}^{{commit}}")[:12]
    root = FOLDER / sha
    if not (root / "Makefile").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        # Forced, because git still knows a worktree whose folder was removed (`make clean`).
        _git("worktree", "add", "--force", "--detach", str(root), sha)
    if not (root / INSTALLED).exists():
        subprocess.run(["make", "--no-print-directory", "install"], cwd=root, check=True)
    return Side(sha, root)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()
