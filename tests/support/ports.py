"""Ports for tests: a free one, and a program that takes any."""

import socket
import struct

import pytest

IP_LOCAL_PORT_RANGE = 51
"""Python's socket has no name for it yet."""


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask_for_any_of_one_port(asking: socket.socket, port: int) -> None:
    """Has the next `bind` to port 0 find this port alone."""
    try:
        asking.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=HH", port, port))
    except OSError:
        pytest.skip("this kernel is older than 6.3")
