"""Asks the system for a port as a program does that takes any."""

import socket
import struct

import pytest

IP_LOCAL_PORT_RANGE = 51
"""Python's socket has no name for it yet."""


def ask_for_any_of_one_port(asking: socket.socket, port: int) -> None:
    """Has the next `bind` to port 0 find this port alone."""
    try:
        asking.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=HH", port, port))
    except OSError:
        pytest.skip("this kernel is older than 6.3")
