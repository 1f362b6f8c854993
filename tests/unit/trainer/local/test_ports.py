"""Ports that are free, taken, and named."""

import socket

import pytest

from rolloutpool_trainer.errors import PortTaken
from rolloutpool_trainer.local.ports import check_port, free_port, is_free


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
