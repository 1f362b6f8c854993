"""Worker processes: with `--processes` as an operator starts them, else one alone, as a parent starts it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.forked_worker import ForkedWorker
from tests.support.secrets import secrets_file
from tests.support.waiting import until, until_true

from rolloutpool_common.process.obituaries import new_worker_id
from rolloutpool_common.protocol.workers import Worker as Announced
from rolloutpool_common.store import Store

ROOT = Path(__file__).parents[2]
LONGEST_WAIT = 60.0
"""Seconds for a start or an end: importing transformers takes several on a loaded machine."""


class Worker:
    """One worker process without a parent, whose pid is that of `process`; or with `--processes` a parent of some."""

    def __init__(
        self,
        redis_url: str,
        import_from: Sequence[Path] = (),
        arguments: Sequence[str] = (),
        *,
        run_by: Sequence[str] = (),
        **env: str,
    ) -> None:
        """Starts it. `run_by` is a command that becomes the worker, which is added to its arguments."""
        alone = () if "--processes" in arguments else ("--worker-id", new_worker_id())
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed with the process
        env = {
            **os.environ,
            "ROLLOUTPOOL_REDIS_URL": redis_url,
            "ROLLOUTPOOL_TOKENIZERS": "rolloutpool/tiny",
            "ROLLOUTPOOL_WORKER_SLOTS": "32",
            "ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()),
            # Hosts that are refused are tested on their own.
            "ROLLOUTPOOL_ALLOWED_TARGETS": "*,127.0.0.0/8,::1",
            # So are paths as names of tokenizers.
            "ROLLOUTPOOL_ALLOWED_TOKENIZERS": "*",
            "PYTHONPATH": os.pathsep.join([*map(str, import_from), os.environ.get("PYTHONPATH", "")]),
            **env,
        }
        self.process: ForkedWorker | subprocess.Popen[bytes]
        # A parent has imported nothing that takes long, and other sources have to be imported.
        if alone and not run_by and not any((path / "rolloutpool_worker").exists() for path in import_from):
            self.process = ForkedWorker([*alone, *arguments], env, Path(self._log.name))
            return
        self.process = subprocess.Popen(
            [*run_by, sys.executable, "-m", "rolloutpool_worker", *alone, *arguments],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # A group of its own, which `close` ends.
            process_group=0,
        )

    def log(self) -> str:
        """All that it has printed so far."""
        self._log.seek(0)
        return self._log.read().decode()

    async def announced(self, store: Store) -> Announced:
        """What it says of itself, as soon as it does."""

        async def look() -> Announced | None:
            assert self.process.poll() is None, self.log()
            return next((w for w in await store.workers.known() if w.pid == self.process.pid), None)

        return await until(look, LONGEST_WAIT)

    def terminate(self) -> None:
        """Asks it to drain."""
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Its exit code."""
        await until_true(lambda: self.process.poll() is not None, LONGEST_WAIT)
        assert self.process.returncode is not None
        return self.process.returncode

    def kill(self) -> None:
        """Ends it without warning; harmless when it has ended."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Ends it with its isolated process, which could take the next test's suspects, and forgets its log."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


@contextlib.contextmanager
def started_worker(
    redis_url: str,
    import_from: Sequence[Path] = (),
    arguments: Sequence[str] = (),
    *,
    run_by: Sequence[str] = (),
    **env: str,
) -> Iterator[Worker]:
    """A worker that does not outlive the block; it may not be ready yet."""
    worker = Worker(redis_url, import_from, arguments, run_by=run_by, **env)
    try:
        yield worker
    finally:
        worker.close()
