"""Obituaries: a parent reports how each of its workers ended, so that their rollouts go on at once.

The operating system tells a parent that its child has ended, and how, within milliseconds. Nothing else in the pool
knows that so soon or so exactly.

1. The parent has an id and a lifeline `sup:{id}` (`store/lifeline.py`). Its workers' records name it, so the reconciler
   knows that a report will come. Where parent and children are gone together, no report comes, and the lost lifelines
   say so.
2. It chooses the id of each worker before it starts the process (`name_worker`). So it can also report the end of a
   worker that never spoke.
3. When the process has ended, `report` puts the end into a queue and returns: the worker's next start never waits for
   Redis.
4. A thread writes the reports to Redis. While Redis is away it tries again, for up to `REPORT_SECONDS`.

Example: worker `node-1-5f0c…` dies by SIGSEGV. Redis gets `node-1-5f0c… signal:11`, and the reconciler queues the
worker's rollouts again in its next look, a quarter of a second later.
"""

import asyncio
import logging
import os
import queue
import signal
import socket
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.oom import OomKills
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.lifeline import Lifeline

_log = logging.getLogger(__name__)

WORKER_ID_OPTION, SUPERVISOR_OPTION = "--worker-id", "--supervisor"
"""By these a worker process learns its id and that of its parent."""
REPORT_SECONDS = 600.0
"""For so long a report is tried. A Redis that was away for longer comes back to workers that have long been missed."""
LAST_REPORT_SECONDS = 2.0
"""How long `stop` waits for reports that have not arrived."""
LOOK_SECONDS = 1.0
"""Between two looks at the counter of OOM kills."""
RETRY = Backoff(first_s=0.1, longest_s=2.0)


def new_worker_id() -> str:
    """Makes an id that no other worker process has or had; it begins with the host's name."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:16]}"


class _Report(NamedTuple):
    worker_id: str
    end: ProcessEnd
    give_up: float
    """When it is given up, on the monotonic clock."""


class Obituaries:
    """Holds what one parent reports about its workers. Its methods may be called from any thread."""

    def __init__(self, redis_url: str, *, oom_kills: OomKills | None = None) -> None:
        """Starts nothing yet."""
        self.supervisor_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._redis_url = redis_url
        self._oom_kills = oom_kills or OomKills()
        self._lifeline = Lifeline(redis_url, f"sup:{self.supervisor_id}")
        self._reports: queue.SimpleQueue[_Report | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="obituaries", daemon=True)

    def start(self) -> None:
        """Starts the lifeline and the thread that writes reports; does not need a Redis that answers."""
        self._lifeline.start()
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left to report, for up to two seconds, and ends both threads."""
        self._reports.put(None)
        # A signal may interrupt `start`. Then there is nothing to write, and a join would be an error.
        if self._thread.ident is not None:
            self._thread.join(LAST_REPORT_SECONDS)
        self._lifeline.stop()

    def name_worker(self) -> tuple[str, list[str]]:
        """Chooses the id of a worker process; returns it, and the options that tell the process who it is."""
        worker_id = new_worker_id()
        return worker_id, [WORKER_ID_OPTION, worker_id, SUPERVISOR_OPTION, self.supervisor_id]

    def report(
        self, worker_id: str, returncode: int, *, told_to_stop: bool = False, killed_by_us: bool = False
    ) -> None:
        """Reports that a worker process has ended; returns at once."""
        oom = returncode == -signal.SIGKILL and not killed_by_us and self._oom_kills.take()
        end = ProcessEnd.of(returncode, told_to_stop=told_to_stop, oom=oom)
        self._reports.put(_Report(worker_id, end, time.monotonic() + REPORT_SECONDS))

    def _run(self) -> None:
        # An event loop of this thread's own, because the store is asynchronous and its connections belong to one loop.
        with asyncio.Runner() as runner:
            store = Store.open(self._redis_url, max_connections=1)
            try:
                # Connected now, because on a busy machine that takes a second, and a death should not wait for it.
                with suppress(StoreError):
                    runner.run(store.ping())
                self._deliver(store, runner)
            finally:
                runner.run(store.close())

    def _deliver(self, store: Store, runner: asyncio.Runner) -> None:
        waiting: deque[_Report] = deque()
        failures, stopping = 0, False
        while not stopping or waiting:
            try:
                report = self._reports.get(timeout=RETRY.delay_s(failures) if failures else LOOK_SECONDS)
                stopping = stopping or report is None
                if report is not None:
                    waiting.append(report)
            except queue.Empty:
                self._oom_kills.look()
            while waiting:
                worker_id, end, give_up = waiting[0]
                try:
                    runner.run(store.workers.report_end(worker_id, end))
                except StoreError as error:
                    failures += 1
                    if failures == 1:
                        _log.warning("the end of worker %s (%s) is not reported yet: %s", worker_id, end, error.message)
                    if time.monotonic() < give_up:
                        break
                    _log.error("the end of worker %s (%s) was never reported", worker_id, end)
                else:
                    failures = 0
                    _log.info("worker %s ended: %s", worker_id, end)
                waiting.popleft()
