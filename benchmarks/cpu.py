"""CPU time of this process and its children by role, from /proc. It shows what a rollout costs on a busy machine too.

It is user and system time, with that of children which have ended, because Redis rewrites its file in a child. The
resolution is 10 ms, so measure for seconds. Flower has no role, because no benchmark asks it for anything.
"""

import os
from dataclasses import dataclass
from pathlib import Path

POOL_ROLES = ("api", "worker", "redis")
"""The sum of these is the pool's own cost."""
_ROLES = {
    "rolloutpool_api": "api",
    "rolloutpool_api.capabilities.harness": "door",
    "rolloutpool_worker": "worker",
    "redis": "redis",
    "benchmarks.stub_trainer": "stub",
    "benchmarks.founding": "founding",
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Process:
    parent: int
    name: str
    seconds: float
    ended_children: float


class Usage:
    """CPU seconds of each process at one moment."""

    def __init__(self) -> None:
        """Reads the times now."""
        self.by_process = _by_process()
        """Seconds by pid and role."""

    def since(self, earlier: "Usage") -> dict[str, float]:
        """Returns the CPU seconds by role since an earlier moment, of the processes that lived at both."""
        spent: dict[str, float] = {}
        for key, seconds in self.by_process.items():
            if key in earlier.by_process:
                role = key[1]
                spent[role] = spent.get(role, 0.0) + seconds - earlier.by_process[key]
        return spent


def seconds_of(pid: int) -> float:
    """Returns the CPU seconds of one process so far, with those of its children that have ended."""
    process = _read(Path(f"/proc/{pid}"))
    if process is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return process.seconds + process.ended_children


def _by_process() -> dict[tuple[int, str], float]:
    processes = {int(path.name): found for path in Path("/proc").iterdir() if (found := _read(path)) is not None}
    own = os.getpid()
    seconds = {(own, "load"): processes[own].seconds}
    for pid, process in processes.items():
        role = _role(pid, process.name)
        if role is not None and _descends(pid, own, processes):
            seconds[pid, role] = process.seconds + process.ended_children
    return seconds


def _read(path: Path) -> _Process | None:
    if not path.name.isdecimal():
        return None
    try:
        text = (path / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    user, system, ended_user, ended_system = (int(field) / _TICKS for field in fields[11:15])
    return _Process(int(fields[1]), head.partition("(")[2], user + system, ended_user + ended_system)


def _role(pid: int, name: str) -> str | None:
    if name.startswith("redis"):
        return "redis"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Celery puts a title in the place of a worker's command line.
    if command[0].startswith("[celeryd:"):
        return "worker"
    # `python -m MODULE`
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    return _ROLES.get(module)


def _descends(pid: int, ancestor: int, processes: dict[int, _Process]) -> bool:
    while pid in processes and pid != ancestor:
        pid = processes[pid].parent
    return pid == ancestor
