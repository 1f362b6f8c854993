"""Free ports in a row, as `base_port` and `workers` mean them."""

import socket
from contextlib import ExitStack

LAST_PORT = 65535


def free_base_port(count: int, host: str = "127.0.0.1") -> int:
    """Finds a port that is free with those after it, `count` in all."""
    while True:
        with ExitStack() as bound:
            first: int = bound.enter_context(socket.create_server((host, 0))).getsockname()[1]
            if first + count - 1 > LAST_PORT:
                continue
            try:
                for port in range(first + 1, first + count):
                    bound.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return first
