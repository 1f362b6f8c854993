"""Real sockets: several ports, one app, gone afterwards."""

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import PortTaken, TrainerError
from rolloutpool_trainer.local.ports import is_free


async def port_of(request: Request) -> JSONResponse:
    return JSONResponse(request.url.port)


APP = Starlette(routes=[Route("/", port_of)])


def test_serves_on_each_port_until_the_block_ends() -> None:
    with serve_callback(APP, [0, 0, 0]) as served:
        assert len(set(served.ports)) == 3
        assert served.url == served.urls[0] == f"http://127.0.0.1:{served.ports[0]}"
        with httpx.Client(trust_env=False) as client:
            assert [client.get(url).json() for url in served.urls] == list(served.ports)
    assert all(is_free(port) for port in served.ports)


def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    with socket.socket() as other, socket.socket() as probe:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        with (
            pytest.raises(PortTaken, match=f"port {taken} of 127.0.0.1"),
            serve_callback(APP, [free, taken]),
        ):
            pass
        assert is_free(free)


def test_an_error_in_the_block_stops_the_server() -> None:
    with pytest.raises(ZeroDivisionError), serve_callback(APP, [0]) as served:
        raise ZeroDivisionError
    assert is_free(served.ports[0])


def test_an_app_that_cannot_start_is_an_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no weights"})

    with pytest.raises(TrainerError, match="did not start"), serve_callback(broken, [0]):
        pass
