"""Reporter: sends what a process has measured to Redis, and measures how late its event loop is.

1. Every `REPORT_SECONDS` it empties the process's metrics (`metrics.py`) into a report.
2. A report that Redis did not answer is sent again as it was, under its number. What is measured meanwhile waits for
   the next one. So Redis adds each increment once.
3. Four times a second it looks how late the event loop wakes it.
4. When the process stops it sends a last report, and takes its standing back.
"""

import asyncio
import gc
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.process.build import commit
from rolloutpool_common.process.metrics import CPU_SECONDS, GC_COLLECTIONS, LOOP_LAG, Largest, Level, Row, take_rows
from rolloutpool_common.store import StoreError
from rolloutpool_common.store.measures import PoolMeasures

REPORT_SECONDS = 5.0
TICK_SECONDS = 0.25
PAGE = resource.getpagesize()


class Reporter:
    """Reports the metrics of one process; for one event loop."""

    def __init__(self, measures: PoolMeasures, *, component: str, process: str, version: str) -> None:
        """Starts nothing yet."""
        self._measures = measures
        self._component = component
        self._process = process
        self._version = version
        self._commit = commit()
        self._number = 1
        self._unsent: Sequence[Row] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._cpu = 0.0
        self._collections = [0, 0, 0]
        self._reporting = BackgroundTask("report")
        self._ticking = BackgroundTask("loop lag")

    def start(self) -> None:
        """Begins, in the running event loop."""
        self._reporting.start(self._run())
        self._ticking.start(self._tick())

    async def stop(self) -> None:
        """Sends what is left and leaves; a Redis that does not answer loses it."""
        await self._ticking.stop()
        await self._reporting.stop()
        with suppress(StoreError):
            await self.report()
            await self._measures.leave(self._process)

    async def report(self) -> None:
        """Sends a report now; raises `StoreError`."""
        # A scrape of the API reports too.
        async with self._one_at_a_time:
            if self._unsent is None:
                self._measure_process()
                self._unsent = take_rows()
            await self._measures.report(self._process, self._number, self._standing(), self._unsent)
            self._number, self._unsent = self._number + 1, None

    async def _run(self) -> None:
        while True:
            # The store says elsewhere that it does not answer.
            with suppress(StoreError):
                await self.report()
            await asyncio.sleep(REPORT_SECONDS)

    async def _tick(self) -> None:
        clock: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            due = clock() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            LOOP_LAG.observe(max(clock() - due, 0.0), self._component)

    def _measure_process(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = used.ru_utime + used.ru_stime
        CPU_SECONDS.add(max(cpu - self._cpu, 0.0), self._component)
        self._cpu = cpu
        for generation, stats in enumerate(gc.get_stats()):
            GC_COLLECTIONS.add(stats["collections"] - self._collections[generation], self._component, str(generation))
            self._collections[generation] = stats["collections"]

    def _standing(self) -> dict[str, Any]:
        return {
            "component": self._component,
            "version": self._version,
            "commit": self._commit,
            "resident_bytes": _resident_bytes(),
            "open_fds": _open_fds(),
            "levels": {name: level.now for name, level in Level.all.items()},
            "largest": {name: largest.read() for name, largest in Largest.all.items()},
        }


def _resident_bytes() -> int:
    with suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE
    # Elsewhere only the peak is known; Linux counts kilobytes, macOS bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _open_fds() -> int:
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd"))
    return 0
