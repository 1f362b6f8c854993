"""Looks at processes of this machine by their id."""

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended.

    A process that has ended stays listed until its parent asks for its exit code. An orphan's parent is whoever takes
    in orphans: the first process of a container, or the test's own process, may never ask.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
