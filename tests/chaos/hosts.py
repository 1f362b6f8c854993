"""A host of workers, which is hurt as a whole or process by process."""

from dataclasses import dataclass
from pathlib import Path

from tests.chaos import sockets
from tests.chaos.link import Link
from tests.chaos.process import Process
from tests.chaos.record import Record
from tests.support.other_builds import CommitMissing, lay_out, listed_builds

APIS = 2
ELASTIC = 2
"""Hosts that come and go; the last one is of the build of another commit."""


@dataclass(frozen=True)
class Host:
    """One machine with workers, as far as the pool can tell."""

    root: Process
    """The parent of its workers."""
    link: Link
    """To Redis."""

    @property
    def name(self) -> str:
        """Of its link and of its first process."""
        return self.root.name

    def pids(self) -> list[int]:
        """Of all its processes that live."""
        return [] if self.root.pid is None else sockets.family(self.root.pid)


def host_names(count: int) -> list[str]:
    """The hosts of a cast with so many that stay."""
    return [*numbered("host", count), *numbered("elastic", ELASTIC)]


def machine_names(hosts: int) -> list[str]:
    """The machines of a cast with so many hosts that stay."""
    return ["redis", *numbered("api", APIS), *host_names(hosts)]


def numbered(kind: str, count: int) -> list[str]:
    return [f"{kind}-{n}" for n in range(count)]


def lay_out_build(folder: Path, record: Record) -> Path | None:
    """Lays out the sources of the newest build of `builds.txt`; None where this clone does not have its commit."""
    commit = listed_builds()[-1]
    try:
        return lay_out(commit, folder)
    except CommitMissing as missing:
        record.write("skipped", why=f"mixed builds: {missing}")
        return None


def redis_options(folder: Path, address: str, port: int) -> list[str]:
    """How a Redis of a campaign is run."""
    options = {
        **{"--bind": address, "--protected-mode": "no", "--port": str(port), "--dir": str(folder)},
        **{"--appendonly": "yes", "--appendfsync": "always", "--save": "", "--maxmemory-policy": "noeviction"},
    }
    return [part for option in options.items() for part in option]
