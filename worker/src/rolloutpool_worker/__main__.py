"""`python -m rolloutpool_worker`: one worker process, until SIGTERM.

With `--isolated UID PARENT`, which only a worker says: suspected rollouts, one after the other, `UID` first.
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
    """Runs a Celery worker; exits with a line that says what is wrong with the settings."""
    try:
        settings = WorkerSettings.from_environment()
    except SettingsInvalid as error:
        sys.exit(refuse_start("worker", error))
    settings.start_logging()
    # Texts come one by one, and the other cores have workers of their own.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Imports transformers, which takes a second or two: only now that the settings hold.
    from rolloutpool_worker.process.isolation import OPTION, serve
    from rolloutpool_worker.queue.app import CeleryWorker, load_plugins

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asked = threading.Event()
    try:
        if sys.argv[1:2] == [OPTION]:
            load_plugins(settings)
            asyncio.run(serve(settings, sys.argv[2], int(sys.argv[3])))
        # In the middle of its start it would end without a word to those to whom it may be announced already.
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
        process = CeleryWorker(settings)
    except RolloutPoolError as error:
        sys.exit(refuse_start("worker", error))
    try:
        # Until Celery takes the signal over.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        if asked.is_set():
            sys.exit(0)
        worker = process.worker()
        collect_rarely()
        worker.start()
    finally:
        process.stop()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
