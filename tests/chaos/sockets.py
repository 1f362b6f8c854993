"""Processes and ports of this machine, as Linux' /proc has them: who descends from whom, and whose a port is."""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rolloutpool_trainer.local.ports import is_free

LOWEST = 10_000


def lasting_ports() -> Iterator[int]:
    """Free ports, each once, that the kernel gives to no outgoing connection while their owner is being restarted."""
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Not from the campaign's seed: two campaigns may run side by side.
    for port in random.sample(range(LOWEST, above), above - LOWEST):
        if is_free(port):
            yield port


def family(pid: int) -> list[int]:
    """A process and all that descend from it, itself first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    # The list grows while it is walked.
    for one in found:
        found += children.get(one, ())
    return found


def owner(port: int, pids: Iterable[int]) -> int | None:
    """The process of these whose socket has this local port, in its own network; None where it is none of them."""
    wanted: dict[str, set[str]] = {}
    for pid in pids:
        with suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
            if network not in wanted:
                wanted[network] = _sockets(pid, port)
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") in wanted[network]:
                        return pid
    return None


def _sockets(pid: int, port: int) -> set[str]:
    """All sockets with this local port in the network of this process, by the names that descriptors have."""
    lines = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    # An earlier connection from the same port may still be listed, as one that nobody owns.
    return {f"socket:[{fields[9]}]" for fields in lines if fields[1].endswith(f":{port:04X}") and fields[9] != "0"}


def _stat(pid: int) -> list[str] | None:
    """State, parent and the other fields after the program's name, which may hold spaces; None without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
