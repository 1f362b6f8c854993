"""Who gets the CPU first: what stands for other machines, before the pool and the hogs.

The campaign's process is the network (all links) and the clients, its trainers are machines with GPUs. Where they
starve beside the hogs, they are what is measured: a trainer that was killed took 10 s to listen again. So they are
preferred where this process may do that (as root).
"""

import os
from contextlib import suppress
from pathlib import Path

PREFERRED = -10


def prefer(pid: int = 0) -> bool:
    """Prefers a process and its session, this one by default; returns whether that was allowed."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, PREFERRED)
        # Where Linux shares the CPU out among sessions first, a process's own priority counts within its session only.
        with suppress(FileNotFoundError):
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(PREFERRED))
    except (PermissionError, ProcessLookupError):
        return False
    return True


def niceness() -> int:
    """What the niceness of an ordinary child is above that of this process: not 0 where this process is preferred."""
    return max(0, -os.getpriority(os.PRIO_PROCESS, 0))
