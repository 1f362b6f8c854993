"""The internals of uvicorn that the endpoint uses are still there; a failure here names the one that is gone."""

import inspect

import uvicorn

from rolloutpool_trainer.endpoint.uvicorn_compat import SettledServer


async def app(*_: object) -> None:
    """Serves nothing."""


def test_a_server_starts_stops_and_says_so() -> None:
    assert list(inspect.signature(uvicorn.Server.startup).parameters) == ["self", "sockets"]
    server = SettledServer(uvicorn.Config(app))
    assert (server.started, server.should_exit, server.settled.is_set()) == (False, False, False)
    server.stop_soon()
    assert server.should_exit
