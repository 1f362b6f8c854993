"""`python -m rolloutpool_worker`: one worker process, until SIGTERM.

With `--isolated UID PARENT`, which only a worker says: suspected rollouts, one after the other, `UID` first.
"""

import asyncio
import os
import signal
import sys
import threading

from pydantic import ValidationError

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.garbage import collect_rarely
from rolloutpool_common.process.logs import configure_logs
from rolloutpool_worker.settings import WorkerSettings


def main() -> None:
    """Runs a Celery worker; exits with a line that says what is wrong with the settings."""
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            name = str(fault["loc"][0])
            shown = name.upper() if name.isupper() else f"ROLLOUTPOOL_{name.upper()}"
            print(f"rolloutpool worker: {shown}: {fault['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        sys.exit(2)
    configure_logs(settings.log_level, settings.log_format)
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
        print(f"rolloutpool worker: {error.message}", file=sys.stderr)
        sys.exit(2)
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
