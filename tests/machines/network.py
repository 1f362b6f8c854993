"""Several machines on one: network namespaces on a bridge, each with an address, and what goes wrong between them.

A namespace has a network of its own and shares everything else, so processes are started in it as on another host. The
host of the tests is on the bridge too. nftables drops what is to be lost; a kernel that has netem also delays.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

BRIDGE = "rpbridge"
PREFIX = "10.77.0."
HERE = f"{PREFIX}1"
"""The address of the host of the tests."""


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command of the system."""
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Machine:
    """One namespace."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.address = f"rp-{name}", f"{PREFIX}{number}"
        self._link, self._folder = f"rpv{number}", folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        run("ip", "netns", "add", self.name)
        # The kernel takes a namespace's links away a moment after it.
        run("ip", "link", "del", self._link, check=False)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        for command in (("addr", "add", f"{self.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            self._inside("ip", *command)
        self._inside("ip", "link", "set", "lo", "up")
        self._inside("nft", "add", "table", "inet", "faults")
        self._inside("nft", "add", "chain", "inet", "faults", "loss", "{ type filter hook input priority 0 ; }")

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns what runs this command on this machine; its process id stays the same."""
        return ["ip", "netns", "exec", self.name, *command]

    def start(self, name: str, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Starts a process on this machine."""
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.command(command),
                env={**os.environ, **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """Ends a process of this machine at once; the kernel tells those that were connected."""
        self._processes[name].kill()

    def lose(self, percent: int) -> None:
        """From now on so many of the packets that come are lost."""
        self._inside("nft", "add", "rule", "inet", "faults", "loss", f"numgen random mod 100 < {percent} drop")

    def ignore(self, *addresses: str) -> None:
        """From now on nothing comes from these machines."""
        self._inside("nft", "add", "rule", "inet", "faults", "loss", f"ip saddr {{ {', '.join(addresses)} }} drop")

    def delay(self, ms: int) -> bool:
        """From now on each packet that leaves is late; False where this kernel can't do it."""
        made = self._inside("tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{ms}ms", check=False)
        return made.returncode == 0

    def heal(self) -> None:
        """From now on all packets come."""
        self._inside("nft", "flush", "chain", "inet", "faults", "loss")

    def cut(self) -> None:
        """Takes the machine off the network; no connection is told."""
        run("ip", "link", "set", self._link, "down")

    def join(self) -> None:
        """Puts it back."""
        run("ip", "link", "set", self._link, "up")

    def die(self) -> None:
        """Loses the machine: it is off the network, and then all of its processes are gone."""
        self.cut()
        listed = run("ip", "netns", "pids", self.name).stdout.split()
        for pid in listed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def close(self) -> None:
        """Ends its processes and takes the namespace away."""
        self.die()
        run("ip", "link", "del", self._link, check=False)
        run("ip", "netns", "del", self.name, check=False)

    def _inside(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(*self.command(command), check=check)


@contextlib.contextmanager
def network(folder: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """Makes machines with these names."""
    run("ip", "link", "del", BRIDGE, check=False)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{HERE}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    with contextlib.ExitStack() as stack:
        stack.callback(run, "ip", "link", "del", BRIDGE, check=False)
        machines = {}
        for number, name in enumerate(names, 2):
            run("ip", "netns", "del", f"rp-{name}", check=False)
            machines[name] = Machine(name, number, folder)
            stack.callback(machines[name].close)
        yield machines
