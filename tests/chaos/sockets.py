"""Ports of this machine, as Linux' /proc has them: whose they are, and which stay ours while nobody listens."""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rolloutpool_trainer.local.ports import is_free

__all__ = ["lasting_ports", "owner"]

LOWEST = 10_000


def lasting_ports() -> Iterator[int]:
    """Free ports, each once, that the kernel gives to no outgoing connection while their owner is being restarted."""
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Not from the campaign's seed: two campaigns may run side by side.
    for port in random.sample(range(LOWEST, above), above - LOWEST):
        if is_free(port):
            yield port


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
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") == wanted:
                        return pid
    return None
