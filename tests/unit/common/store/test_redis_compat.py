"""The internals of redis-py that `redis_compat` uses are still there; a failure here names the one that is gone."""

import asyncio
import inspect
from typing import Any

import pytest
from hiredis import pack_command
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from rolloutpool_common.store.redis_compat import (
    NOT_COMPLETE,
    GreetingConnection,
    PushNotification,
    answer_reader,
    kind_of,
    take_over,
)


class Tcp(GreetingConnection, Connection):
    """Connects nowhere."""


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://localhost", Connection),
        ("rediss://localhost", SSLConnection),
        ("unix:///nowhere.sock", UnixDomainSocketConnection),
    ],
)
def test_a_url_tells_the_kind_of_its_connections(url: str, kind: type[AbstractConnection]) -> None:
    assert kind_of(url) is kind


async def test_a_command_is_sent_without_redis_pys_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"command", "check_health"} <= parameters(AbstractConnection.send_packed_command)
    seen: list[float | None] = []

    async def send(self: AbstractConnection, *_: object) -> None:
        seen.append(self.socket_timeout)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", send)
    connection = Tcp(socket_timeout=3)
    await connection.send_packed_command(b"PING")
    assert seen == [None]
    assert connection.socket_timeout == 3


def test_a_connection_asks_each_new_server_by_this_hook() -> None:
    assert {"check_health"} <= parameters(AbstractConnection.on_connect_check_health)
    assert "on_connect_check_health" in inspect.getsource(AbstractConnection.connect_check_health)
    assert {"nowait"} <= parameters(AbstractConnection.disconnect)


async def test_a_connection_is_taken_over_with_its_socket() -> None:
    class Heard(asyncio.Protocol):
        """Keeps what it hears."""

        def __init__(self) -> None:
            self.data: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            self.data.set_result(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000) not in (b"", b"mine"):
            writer.write(b"+OK\r\n" * 3)
        writer.write(b"yours")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection, heard = Tcp(port=port, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0)), Heard()
        kept: Any = await take_over(connection, heard)
        assert not connection.is_connected
        kept.transport.write(b"mine")
        assert await heard.data == b"yours"
        kept.transport.abort()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOSCRIPT No matching script", NoScriptError),
        ("OOM command not allowed", OutOfMemoryError),
        ("READONLY You can't write", ReadOnlyError),
        ("LOADING Redis is loading", BusyLoadingError),
        ("NOAUTH Authentication required.", AuthenticationError),
        ("ERR max number of clients reached", RedisConnectionError),
        ("BUSY Redis is busy", ResponseError),
    ],
)
def test_what_redis_refuses_is_redis_pys_own_error(text: str, kind: type[Exception]) -> None:
    reader = answer_reader()
    assert reader.gets() is NOT_COMPLETE
    reader.feed(f"*2\r\n:1\r\n-{text}\r\n-{text}\r\n>1\r\n:1\r\n".encode())
    nested, alone, pushed = reader.gets(), reader.gets(), reader.gets()
    assert [type(nested[1]), type(alone)] == [kind, kind]
    assert isinstance(pushed, PushNotification)
    assert not reader.has_data()


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(), st.binary(), st.integers(), st.floats()), max_size=5))
@example(["ü", b"\xff\x00", -1, 1e300, 0.1, 2**70, ""])
def test_a_command_is_written_as_redis_py_would_write_it(arguments: list[Any]) -> None:
    command: Any = ("EVALSHA", *arguments)
    assert pack_command(command) == b"".join(Tcp().pack_command(*command))


@pytest.mark.parametrize("argument", [None, True, ["x"], {"x": 1}])
def test_what_redis_has_no_form_for_is_refused(argument: Any) -> None:
    command: Any = ("SET", "x", argument)
    with pytest.raises(TypeError):
        pack_command(command)
