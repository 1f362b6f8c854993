"""The internals of redis-py that `redis_compat` uses are still there; a failure here names the one that is gone."""

import inspect
from typing import Any

import pytest
from hiredis import pack_command
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rolloutpool_common.store.redis_compat import GreetingConnection, kind_of


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


def test_commands_can_be_sent_together_without_a_pipeline() -> None:
    connection = Tcp(retry=Retry(NoBackoff(), 1))
    assert {"do", "fail"} <= parameters(connection.retry.call_with_retry)
    for method in (BlockingConnectionPool.get_connection, BlockingConnectionPool.release, connection.read_response):
        assert inspect.iscoroutinefunction(method)


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
