"""Ports that are free, taken, and named."""

import socket
from contextlib import ExitStack

import pytest
from tests.support.ports import ask_for_any_of_one_port, free_port

from rolloutpool_trainer.errors import PortTaken
from rolloutpool_trainer.local.ports import check_port, hold_port, is_free


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_named_with_its_option(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port, host)
        with pytest.raises(PortTaken, match=rf"port {port} on {host}, meant for the API, is taken.*--port"):
            check_port(port, host, what="the API", option="--port")


def test_a_free_port_is_free() -> None:
    port = free_port()
    assert is_free(port)
    check_port(port, "127.0.0.1", what="the API", option="--port")


def test_a_held_port_is_for_its_server_alone() -> None:
    with ExitStack() as held, socket.socket() as other:
        port = hold_port("127.0.0.1", held)
        # Ask for any port where only this one is left.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ask_for_any_of_one_port(other, port)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", 0))
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
