"""The internals of uvicorn that `uvicorn_compat` uses are still there; a failure here names the one that is gone."""

import inspect
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (HttpToolsProtocol.connection_made, ["self", "transport"]),
        (HttpToolsProtocol.connection_lost, ["self", "exc"]),
        (HttpToolsProtocol.data_received, ["self", "data"]),
        (HttpToolsProtocol.on_message_begin, ["self"]),
        (HttpToolsProtocol.on_url, ["self", "url"]),
        (HttpToolsProtocol.on_header, ["self", "name", "value"]),
        (HttpToolsProtocol.on_headers_complete, ["self"]),
        (HttpToolsProtocol.send_400_response, ["self", "msg"]),
        (uvicorn.Server.shutdown, ["self", "sockets"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_we_override_is_there(method: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == parameters


def test_an_error_in_a_callback_of_the_parser_is_answered_by_send_400_response() -> None:
    assert "self.send_400_response" in inspect.getsource(HttpToolsProtocol.data_received)
    assert "self.cycle = RequestResponseCycle(" in inspect.getsource(HttpToolsProtocol.on_headers_complete)
    assert "self.response_complete = " in inspect.getsource(RequestResponseCycle.__init__)
    assert "self.client = " in inspect.getsource(HttpToolsProtocol.connection_made)
    assert "self.transport" in inspect.getsource(HttpToolsProtocol.send_400_response)
