"""Says which build this process is: the commit of its sources, beside the version of its distribution.

1. ROLLOUTPOOL_COMMIT says it, where it is set. The images set it (`deploy/`).
2. Otherwise git is asked, where the sources lie in a checkout of this repository.
3. Otherwise it is `unknown`: an installed wheel does not say where it is from.

It is read once for each process. Needs only the standard library.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

COMMIT_VARIABLE = "ROLLOUTPOOL_COMMIT"
UNKNOWN = "unknown"

_ROOT = Path(__file__).resolve().parents[4]
_SECONDS = 5.0
_NAME = re.compile(r"[0-9A-Za-z._+-]{1,64}")


@cache
def commit() -> str:
    """Returns the commit that this process was built from; `unknown` where nothing says it."""
    given = os.environ.get(COMMIT_VARIABLE, "").strip()
    # It becomes a label of metrics, so it must not be anything.
    return given if _NAME.fullmatch(given) else commit_of(_ROOT)


def commit_of(root: Path) -> str:
    """Asks git for the commit of a checkout."""
    # Somebody else's repository may be around an environment in which we are installed; its commit is not ours.
    if not (root / ".git").exists() or not (root / "common" / "pyproject.toml").is_file():
        return UNKNOWN
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    found = done.stdout.strip()
    return found if done.returncode == 0 and _NAME.fullmatch(found) else UNKNOWN
