"""The limit of open files: each connection is one, and most systems allow a process 1,024 until it asks for more."""

import resource
from contextlib import suppress


def allow_open_files(needed: int = 0) -> str | None:
    """Raises this process' limit of open files as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Where there is no limit at all, the system has one, which this process can't raise to.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return None
    return f"this process may open {allowed} files and may need {needed}: raise the limit (ulimit -n, LimitNOFILE)"
