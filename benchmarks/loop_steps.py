"""How much CPU time a worker's event loop spends at a stretch: the stops that all its other rollouts wait for.

The clock of a busy machine says little about that, because it also counts the waiting for a core. So each step of each
task, from one `await` that waits to the next, is measured by the CPU time of the loop's own thread. `note_steps` does
that in the worker, from the next task on, and writes the long steps to a file, one JSON object per line.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, NamedTuple

LONG_MS = 1.0
"""Steps from this length on are noted."""


class Step(NamedTuple):
    """One long step of a task."""

    at: float
    """When it ended, by `time.perf_counter`, which all processes of a machine share."""
    ms: float
    """CPU time of the thread of the loop."""
    begun: str
    """The function in which the task had waited, and its line."""
    ended: str
    """The same for where it waits now; empty where it has ended."""


def note_steps(loop: asyncio.AbstractEventLoop, file: Path) -> None:
    """Notes the long steps of all tasks that are made on the loop from now on."""
    out = file.open("a", encoding="utf-8", buffering=1)

    def note(step: Step) -> None:
        print(json.dumps(step), file=out)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Timed(coroutine, note), loop=loop, **named)

    loop.set_task_factory(make)


def read_steps(file: Path, start: float, stop: float) -> list[Step]:
    """Returns the long steps that ended between two times of `time.perf_counter`."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [step for line in lines if start <= (step := Step(*json.loads(line))).at <= stop]


class _Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], note: Callable[[Step], None]) -> None:
        self._coroutine = coroutine
        self._note = note

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("it belongs to a task")

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        begun, before = _where(self._coroutine), time.thread_time()
        try:
            return step(*values)
        finally:
            ms = (time.thread_time() - before) * 1000
            if ms >= LONG_MS:
                self._note(Step(time.perf_counter(), ms, begun, _where(self._coroutine)))


def _where(awaited: object) -> str:
    """Returns the innermost function of a coroutine that waits."""
    frame: FrameType | None = None
    while isinstance(awaited, CoroutineType) and awaited.cr_frame is not None:
        frame, awaited = awaited.cr_frame, awaited.cr_await
    return "" if frame is None else f"{frame.f_code.co_qualname}:{frame.f_lineno}"
