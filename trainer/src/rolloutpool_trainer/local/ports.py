"""Loopback and service ports: whether one is free, and which one is."""

import socket

from rolloutpool_trainer.errors import PortTaken

__all__ = ["check_port", "free_port", "is_free"]


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether this process could listen on it now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: connections of an earlier one that are still closing are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listened on a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int, host: str, *, what: str, option: str) -> None:
    """Raises `PortTaken`, naming the port and what sets it, unless it is free."""
    if not is_free(port, host):
        raise PortTaken(f"port {port} on {host}, meant for {what}, is taken; choose another with {option}")
