"""Copies of the tree, into which mutants are put.

The first copy has what git knows of, and a link to the environment and to the real tokenizers. The baseline runs there,
which leaves bytecode. Each mutant has a copy of that copy by hard links, so it costs no compiling and no space.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tests.mutants.mutant import ROOT
from tests.mutants.origin import OURS

FOLDER = ROOT / "build" / "mutants"
SHARED = (".venv", "build/tokenizers")


def first_copy() -> Path:
    """Copies the tree as it is now, with what is not committed yet; returns the copy's root."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    base = FOLDER / "base"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        # Git still lists what was removed and not committed.
        if (ROOT / name).is_file():
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, base / name)
    for name in SHARED:
        if (ROOT / name).exists():
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).symlink_to(ROOT / name)
    return base


def copy_of(base: Path, name: str) -> Path:
    """Copies a copy by hard links; returns the new one's root."""
    root = FOLDER / name
    shutil.copytree(base, root, symlinks=True, copy_function=os.link)
    return root


def environment(root: Path) -> dict[str, str]:
    """The environment in which Python imports our packages from a copy."""
    sources = [root, *(root / name.removeprefix("rolloutpool_") / "src" for name in OURS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources)), "HF_HUB_OFFLINE": "1", "MANY_EXAMPLES": "1"}
