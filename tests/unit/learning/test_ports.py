"""A port that is taken is named before anything is trained."""

import socket

import pytest
from examples.learning.ports import refuse_taken_ports
from tests.support.neighbouring_ports import free_base_port

HOST = "127.0.0.1"


def test_free_ports_pass_and_stay_free() -> None:
    base = free_base_port(2)
    refuse_taken_ports(HOST, base, 2)
    refuse_taken_ports(HOST, base, 2)


def test_the_second_port_is_tried_too() -> None:
    base = free_base_port(2)
    with socket.create_server((HOST, base + 1)), pytest.raises(SystemExit) as ended:
        refuse_taken_ports(HOST, base, 2)
    said = str(ended.value)
    assert f"port {base + 1} cannot be listened on: Address already in use" in said
    assert "--base-port" in said


@pytest.mark.parametrize(("base", "named"), [(65535, 65536), (70000, 70000), (-5, -5), (0, 0)])
def test_a_port_that_cannot_be_is_named(base: int, named: int) -> None:
    with pytest.raises(SystemExit, match=f"There is no port {named};"):
        refuse_taken_ports(HOST, base, 2)
