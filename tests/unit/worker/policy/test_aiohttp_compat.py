"""The internals of aiohttp that `aiohttp_compat` uses are still there; a failure here names the one that is gone."""

import inspect

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection


def test_a_reply_is_started_with_its_connection() -> None:
    assert list(inspect.signature(aiohttp.ClientResponse.start).parameters) == ["self", "connection"]
    assert inspect.iscoroutinefunction(aiohttp.ClientResponse.start)
    assert isinstance(inspect.getattr_static(aiohttp.ClientResponse, "connection"), property)


def test_a_connection_can_be_kept_from_further_use() -> None:
    assert isinstance(inspect.getattr_static(Connection, "protocol"), property)
    assert list(inspect.signature(ResponseHandler.force_close).parameters) == ["self"]
    assert list(inspect.signature(ResponseHandler.close).parameters) == ["self"]


def test_a_connection_is_looked_at_before_anything_is_written() -> None:
    assert list(inspect.signature(aiohttp.TCPConnector.connect).parameters) == ["self", "req", "traces", "timeout"]
    written = inspect.signature(aiohttp.ClientRequest.write_bytes).parameters
    assert list(written) == ["self", "writer", "conn", "content_length"]
    assert isinstance(inspect.getattr_static(ResponseHandler, "should_close"), property)


def test_one_who_writes_can_tell_one_who_reads_that_nothing_was_sent() -> None:
    assert next(iter(inspect.signature(ResponseHandler.set_exception).parameters.items()))[0] == "self"
    assert list(inspect.signature(ResponseHandler.exception).parameters) == ["self"]
