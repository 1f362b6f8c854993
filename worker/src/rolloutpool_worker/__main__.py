"""`python -m rolloutpool_worker`: one worker process, until SIGTERM.

A worker starts the same module with `--isolated UID PARENT` to run suspects (`process.isolation`).
"""

import asyncio
import os
import signal
import sys
import threading

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.garbage import collect_rarely
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_worker.settings import WorkerSettings


def main() -> None:
    """Runs a worker; where the settings are wrong, exits with a line that says what is wrong."""
    try:
        settings = WorkerSettings.from_environment()
    except SettingsInvalid as error:
        sys.exit(refuse_start("worker", error))
    settings.start_logging()
    # Tokenizers would use all cores for a list of texts. Here texts come one by one, and each core has its own worker.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # These import transformers, which takes a second or two, so wrong settings are reported before.
    from rolloutpool_worker.process.isolation import OPTION, serve
    from rolloutpool_worker.queue.app import CeleryWorker, load_plugins

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signalled = threading.Event()
    try:
        if sys.argv[1:2] == [OPTION]:
            load_plugins(settings)
            asyncio.run(serve(settings, sys.argv[2], int(sys.argv[3])))
        # It may be announced already, so a SIGTERM during the start must not end it before it has left Redis' list.
        signal.signal(signal.SIGTERM, lambda *_: signalled.set())
        process = CeleryWorker(settings)
    except RolloutPoolError as error:
        sys.exit(refuse_start("worker", error))
    try:
        # Until Celery installs its own handler.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        if signalled.is_set():
            sys.exit(0)
        worker = process.worker()
        collect_rarely()
        worker.start()
    finally:
        process.stop()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
