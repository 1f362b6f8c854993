"""A Redis that keeps its data on disk, is killed, and starts again without the end of its data.

With `appendfsync everysec`, a power cut loses about the last second of writes. Here the test decides which writes are
lost: all that come after `mark`.
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis
from tests.support.ports import free_port
from tests.support.redis_server import SERVER

START_SECONDS = 30.0
COPIER = ("+ping", "+replconf", "+sync", "+psync")
"""What an account needs that takes copies; docs/operations.md names it."""


class DurableRedis:
    """One server at one port, over all its starts."""

    def __init__(self, folder: Path, more: Sequence[str] = ()) -> None:
        self._folder = folder
        self._more = more
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._mark: int | None = None

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self, *, appendonly: bool = True) -> None:
        """Returns when it has loaded its data."""
        options = {
            "--bind": "127.0.0.1",
            "--port": str(self._port),
            "--dir": str(self._folder),
            "--save": "",
            "--appendonly": "yes" if appendonly else "no",
            # With `everysec` a write may wait for the disk, and the mark would lie before it.
            "--appendfsync": "no",
            # From release 7 on a copy over the network is begun five seconds late, for replicas that may come too.
            "--repl-diskless-sync-delay": "0",
        }
        command = [SERVER, *(part for option in options.items() for part in option), *self._more]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        with redis.Redis(port=self._port, protocol=2) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.exceptions.ConnectionError:
                    assert self._process.poll() is None, "redis-server ended"
                    assert time.monotonic() < deadline, f"redis-server is not ready after {START_SECONDS:g} s"
                    time.sleep(0.02)

    def mark(self) -> None:
        """What is written from here on will be lost."""
        self._mark = self._log.stat().st_size

    def kill(self) -> None:
        """Ends it without warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def copy(self, target: Path) -> None:
        """Takes a copy over the network while it runs, as docs/operations.md says."""
        with redis.Redis.from_url(self.url, protocol=2) as client:
            client.execute_command("ACL", "SETUSER", "copier", "on", ">secret", *COPIER)
        cli = Path(SERVER).with_name("redis-cli")
        url = self.url.replace("//", "//copier:secret@")
        subprocess.run([cli, "-u", url, "--rdb", target], check=True, capture_output=True, timeout=60)

    def restore(self, copy: Path) -> None:
        """Starts it anew on a copy. With `appendonly yes` a server reads its append-only file alone, were it empty."""
        self.kill()
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copy(copy, self._folder / "dump.rdb")
        self.start(appendonly=False)
        with redis.Redis.from_url(self.url, protocol=2) as client:
            client.config_set("appendonly", "yes")

    def lose_tail(self) -> int:
        """Ends it and starts it again with what it had at the mark; returns how many bytes were lost."""
        assert self._mark is not None
        self.kill()
        lost = self._log.stat().st_size - self._mark
        with self._log.open("r+b") as log:
            log.truncate(self._mark)
        self.start()
        return lost

    @property
    def _log(self) -> Path:
        return max(self._folder.rglob("*.aof"))


@contextlib.contextmanager
def durable_redis(*more: str) -> Iterator[DurableRedis]:
    """A running server with some options more, whose data is deleted when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="rolloutpool-redis-"))
    server = DurableRedis(folder, more)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)
