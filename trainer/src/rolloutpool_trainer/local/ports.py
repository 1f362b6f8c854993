"""Finds out whether a port is free, and holds one that is until a server of ours listens on it.

Without that another process may take it meanwhile: one of two pools that started together asked the other one's API for
its workers.
"""

import socket
import sys
from contextlib import ExitStack

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


def hold_port(host: str, held: ExitStack) -> int:
    """Takes a free port for a server that starts now or again: nobody else gets it until `held` is closed.

    The server can listen on it all the same, because it sets SO_REUSEADDR too, and nothing listens here.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    port: int = holder.getsockname()[1]
    if sys.platform == "linux":
        held.enter_context(holder)
    else:
        # Other systems would not let the server have it.
        holder.close()
    return port


def check_port(port: int, host: str, *, what: str, option: str) -> None:
    """Checks that a port is free; raises `PortTaken`, which says who needs it and what sets another one."""
    if not is_free(port, host):
        raise PortTaken(f"port {port} on {host}, meant for {what}, is taken; choose another with {option}")
