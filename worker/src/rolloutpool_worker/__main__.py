"""`python -m rolloutpool_worker`: the parent of `--processes N` workers (one if not given), until SIGTERM.

- The parent (`process.parent`) starts this module once for each worker, with `--worker-id` and `--supervisor`. Every
  worker has a parent, because without one nobody could tell its end from a lost connection.
- A worker starts the same module with `--isolated PARENT_PID PARENT_ID` to try suspects (`process.trial`).
- With `--fork-server` it imports everything and forks workers for a parent (`rolloutpool_common.process.fork_server`).
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import structlog

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.garbage import collect_rarely
from rolloutpool_common.process.open_files import allow_open_files
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.store import StoreMisaddressed, check_addresses
from rolloutpool_worker.settings import WorkerSettings

OTHER_FILES = 200
"""What a worker has open besides a connection for each rollout: to Redis, to its isolated tools, its own files."""


def main() -> None:
    """Runs a worker or their parent; where the settings are wrong, exits with a line that says what is wrong."""
    options = _options()
    if options.fork_server:
        options = _forked(*map(int, options.fork_server))
    try:
        settings = WorkerSettings.from_environment()
    except SettingsInvalid as error:
        sys.exit(refuse_start("worker", error))
    settings.start_logging()
    if options.worker_id is None:
        from rolloutpool_worker.process.parent import run_parent

        try:
            check_addresses(settings.redis_urls)
        except StoreMisaddressed as error:
            sys.exit(refuse_start("worker", error))
        sys.exit(run_parent(settings, options.processes))
    if warning := allow_open_files(settings.worker_slots + OTHER_FILES):
        structlog.get_logger(__name__).warning(warning)
    # Tokenizers would use all cores for a list of texts. Here texts come one by one, and each core has its own worker.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # These import transformers, which takes a second or two, so wrong settings are reported before.
    from rolloutpool_worker.process.trial import serve
    from rolloutpool_worker.queue.app import CeleryWorker, load_plugins
    from rolloutpool_worker.rollout.services import WorkerIdentity

    identity = WorkerIdentity(options.worker_id, options.supervisor)

    # Until Celery installs its own handler, just before its consumer starts. Until then the worker is not announced, so
    # it may end at once. SystemExit was thrown away where it came while garbage was collected, and the worker ran on.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        if options.isolated:
            parent_pid, parent_id = options.isolated
            load_plugins(settings)
            asyncio.run(serve(settings, identity, int(parent_pid), parent_id))
        process = CeleryWorker(settings, identity)
    except RolloutPoolError as error:
        sys.exit(refuse_start("worker", error))
    try:
        worker = process.worker()
        collect_rarely()
        worker.start()
    finally:
        process.stop()
    sys.exit(worker.exitcode)


def _forked(inherited: int, parent: int) -> argparse.Namespace:
    """Imports what a worker needs, and forks workers; returns in each of them, with its options."""
    from rolloutpool_common.process.fork_server import serve_forks
    from rolloutpool_common.rendering.loading import TINY, load_tokenizer
    from rolloutpool_worker.process import trial  # noqa: F401  imported for the workers
    from rolloutpool_worker.queue import app  # noqa: F401

    # Much of transformers is imported at the first load only.
    load_tokenizer(TINY)
    arguments = serve_forks(inherited, parent)
    # Celery shows them in the list of processes.
    sys.argv[1:] = arguments
    return _options(arguments)


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rolloutpool_worker")
    parser.add_argument(
        "--processes", type=_positive, default=1, help="run so many workers, and start each again when it ends"
    )
    # For processes that a parent or a worker starts, not for people.
    parser.add_argument("--isolated", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--worker-id", help=argparse.SUPPRESS)
    parser.add_argument("--supervisor", help=argparse.SUPPRESS)
    parser.add_argument("--fork-server", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    main()
