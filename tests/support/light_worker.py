"""A worker process that only lives: lifeline, announcement and beats, without Celery, tokenizers and rollouts.

It is forked with a Redis and its id. On SIGUSR1 it holds Python's lock for as many seconds as the
environment's HOLD says.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.forked_worker import ForkedWorker

from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.lifeline import Lifeline
from rolloutpool_common.store.workers import Beat
from rolloutpool_worker.process.pulse import Pulse


def start_light_worker(redis_url: str, worker_id: str, **environment: str) -> ForkedWorker:
    """Starts one; it is listed a second later."""
    return ForkedWorker([redis_url, worker_id], {**os.environ, **environment}, Path(os.devnull), __name__)


def hold_the_gil() -> None:
    """Sleeps in a C function that does not release the lock."""
    ctypes.PyDLL(None).usleep(int(float(os.environ["HOLD"]) * 1e6))


async def live(redis_url: str, worker_id: str) -> None:
    """Announces itself and beats, for ever; ends when it was declared dead."""
    pulse = Pulse(worker_id, time.monotonic)
    lifeline = Lifeline(redis_url, worker_id, pulse)
    await asyncio.to_thread(lifeline.start)
    store = Store.open(redis_url)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hold_the_gil)
    known = False
    while True:
        with suppress(StoreError):
            if not known:
                await store.workers.announce(
                    worker_id,
                    Announcement(host="h", pid=os.getpid(), slots=1, agents=["tool_calls"]),
                    supervisor=os.environ.get("SUPERVISOR"),
                    lifeline=lifeline.seen,
                )
                known = True
        pulse.turn(Beat(running=0, tokenizers={}, lifeline=lifeline.seen))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                answer = await pulse.answers.get()
                known = answer.known
                if answer.condemned:
                    return


def main() -> None:
    """Lives until it is ended."""
    asyncio.run(live(*sys.argv[1:3]))
