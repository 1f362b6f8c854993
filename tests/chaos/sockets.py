"""Which process is at the other end of a connection on this machine, as Linux' /proc has it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["owner"]


def owner(port: int, pids: Iterable[int]) -> int | None:
    """The process of these whose socket has this local port on 127.0.0.1; None where it is none of them."""
    local = f"0100007F:{port:04X}"
    inode = None
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == local:
            inode = fields[9]
    wanted = f"socket:[{inode}]"
    for pid in pids:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(entry.path) == wanted:
                        return pid
    return None
