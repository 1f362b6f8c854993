"""Finds out whether a port is free, and holds one that is until a server of ours listens on it.

Without that another process may take it meanwhile: one of two pools that started together asked the other one's API for
its workers.
"""

import socket
import sys

from rolloutpool_trainer.errors import PortTaken


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether this process could listen on the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # Servers set this too, so that connections of an earlier server that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port on which no process listens now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def hold_port(host: str = "127.0.0.1") -> tuple[int, socket.socket]:
    """Takes a free port for a server that starts now or again: until the socket is closed, nobody else gets it.

    The server can listen on it all the same, because it sets SO_REUSEADDR too, and this socket does not listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    port: int = held.getsockname()[1]
    if sys.platform != "linux":
        # Other systems would not let the server have it.
        held.close()
    return port, held


def check_port(port: int, host: str, *, what: str, option: str) -> None:
    """Checks that a port is free; raises `PortTaken`, which says who needs it and what sets another one."""
    if not is_free(port, host):
        raise PortTaken(f"port {port} on {host}, meant for {what}, is taken; choose another with {option}")
