"""Finds tools that harm their neighbours: those that block the event loop, and those that take much memory.

A tool's coroutine runs in steps: from one `await` that really waits to the next. During a step the loop does nothing
else. So the watch drives the coroutine itself, step by step:

1. Before a step it notes the tool in `ToolWatch.step`. If the loop stands still, the watchdog's thread reads there who
   holds it (`process.event_loop`), also when the step never ends.
2. After a step it compares the time. A step longer than `blocked_seconds` is a blocking tool.
3. After the call it compares the process's peak of memory with the peak before, unless the call was too short for that.
   If it rose by more than `memory_bytes`, all tools that ran in between may be the cause. They are named together.

Each is named in the log, once per tool and minute, and in the warnings of the result (`tool_blocked:NAME`,
`tool_memory:NAME`), which the API counts for its metrics. Nothing is stopped: that takes a process (`isolated.py`).
"""

import logging
import math
import resource
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0
"""Between two log lines about the same tool."""
FASTEST_GROWTH = 16e9
"""Bytes per second: no process gets memory from its system faster. So the peak need not be read after a short call, nor
twice in milliseconds. To read it takes the system 30 µs where other threads are busy, 4 % of a turn."""
REMEMBERED = 1000
"""Calls that have ended, among which the cause of a growth is looked for."""


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A step of a tool that the loop is executing."""

    tool: str
    begun: float
    """On the clock `time.perf_counter`."""


@dataclass(slots=True, eq=False)
class _Call:
    tool: str
    begun: float
    ended: float = 0.0


class ToolWatch:
    """Watches the tool calls of one process."""

    step: ClassVar[RunningStep | None] = None
    """What the process's one loop executes now, if it is a tool."""

    def __init__(
        self,
        *,
        blocked_seconds: float,
        memory_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
        peak: Callable[[], int] | None = None,
        apart: bool = False,
    ) -> None:
        """Watches nothing yet."""
        self._apart = apart
        self._blocked_seconds = blocked_seconds
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._peak = peak or _peak_bytes
        self._soonest = memory_bytes / FASTEST_GROWTH
        self._read = -math.inf, 0
        """When the peak was read last, and what it was."""
        self._running: set[_Call] = set()
        self._ended: deque[_Call] = deque(maxlen=REMEMBERED)
        self._named: dict[str, float] = {}

    def apart(self) -> "ToolWatch":
        """Makes a watch with the same limits, for another loop than the worker's, in a thread of its own."""
        return ToolWatch(blocked_seconds=self._blocked_seconds, memory_bytes=self._memory_bytes, apart=True)

    async def watched(
        self,
        tool: str,
        coroutine: Coroutine[Any, Any, T],
        warnings: set[str],
        *,
        waits: Callable[[], None] | None = None,
    ) -> T:
        """Runs a tool's coroutine and returns its result."""
        call = _Call(tool, self._clock())
        self._running.add(call)
        before = self._recent_peak(call.begun)
        try:
            return await self._steps(tool, coroutine, warnings, waits)
        finally:
            self._running.remove(call)
            call.ended = self._clock()
            self._ended.append(call)
            grown = self._peak_at(call.ended) - before if call.ended - call.begun > self._soonest else 0
            if grown > self._memory_bytes:
                warnings.add(f"tool_memory:{tool}")
                self._name_greedy(call, grown)

    def _recent_peak(self, now: float) -> int:
        """The peak, or what it was so shortly before that less than a quarter of the limit can be new."""
        at, peak = self._read
        return peak if now - at < self._soonest / 4 else self._peak_at(now)

    def _peak_at(self, now: float) -> int:
        self._read = now, self._peak()
        return self._read[1]

    @types.coroutine
    def _steps(
        self,
        tool: str,
        coroutine: Coroutine[Any, Any, T],
        warnings: set[str],
        waits: Callable[[], None] | None,
    ) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            step = RunningStep(tool, self._clock())
            if not self._apart:
                ToolWatch.step = step
            try:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                if not self._apart:
                    ToolWatch.step = None
                seconds = self._clock() - step.begun
                if seconds > self._blocked_seconds:
                    warnings.add(f"tool_blocked:{tool}")
                    whose = "its own" if self._apart else "the"
                    self._log(f"blocked {tool}", f"tool {tool} blocked {whose} event loop for {seconds:.1f} s")
            error = None
            if waits is not None:
                waits()
                waits = None
            try:
                yield waits_for
            # Its loop ended before it did. The tool's own coroutine may be closed already, and then takes no throw.
            except GeneratorExit:
                coroutine.close()
                raise
            # A cancellation, above all: the tool decides what it does about it.
            except BaseException as thrown:
                error = thrown

    def _name_greedy(self, call: _Call, grown: int) -> None:
        others = {other.tool for other in self._running}
        others |= {other.tool for other in self._ended if other.ended > call.begun}
        self._log(
            f"memory {call.tool}",
            f"the process's memory grew by {grown / 2**20:.0f} MB while these tools ran: {', '.join(sorted(others))}",
        )

    def _log(self, key: str, text: str) -> None:
        now = self._clock()
        if now - self._named.get(key, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._named[key] = now
            _log.warning("%s; all rollouts of this worker pay for that; see docs/tools-and-environments.md", text)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024
