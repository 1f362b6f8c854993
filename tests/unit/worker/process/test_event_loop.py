"""The loop of a worker: coroutines from other threads, and an end of the process where it does not get on."""

import asyncio
import subprocess
import sys
import threading
from unittest.mock import create_autospec

import pytest

from rolloutpool_worker.process.event_loop import EXIT_WEDGED, TICK_SECONDS, WEDGED_SECONDS, EventLoop, Watchdog
from rolloutpool_worker.tools.watch import RunningStep, ToolWatch


def test_coroutines_of_other_threads_run_on_one_loop() -> None:
    loop = EventLoop()

    async def where() -> str:
        return threading.current_thread().name

    async def fails() -> None:
        raise ValueError("no")

    try:
        assert {loop.run(where()) for _ in range(3)} == {"rollouts"}
        with pytest.raises(ValueError, match="no"):
            loop.run(fails())
    finally:
        loop.stop()
        loop.stop()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_loop_outlives_a_task_that_wants_to_end_it(error: type[BaseException]) -> None:
    loop = EventLoop()

    async def end() -> None:
        raise error

    async def wait_for_end() -> str:
        try:
            await asyncio.create_task(end())
        except error:
            return "caught"
        return "nothing happened"

    try:
        assert [loop.submit(wait_for_end()).result(timeout=10) for _ in range(3)] == ["caught"] * 3
    finally:
        loop.stop()


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    loop = EventLoop()
    begun, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop.submit(forever())
    assert begun.wait(30)
    loop.stop()
    assert cancelled.is_set()


WEDGED = """
import asyncio, threading, time
from rolloutpool_worker.process import event_loop
event_loop.WEDGED_SECONDS = 1.0
async def block():
    time.sleep(600)
def end():
    event_loop.watch(asyncio.new_event_loop())
async def watched():
    event_loop.watch(asyncio.get_running_loop())
    await block()
{loop}
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "loop",
    [
        "event_loop.EventLoop().submit(block())",
        # The thread of the loop ends, and the process has others.
        "threading.Thread(target=end).start()",
        # As in the process of a single rollout.
        "asyncio.run(watched())",
    ],
)
def test_a_wedged_loop_ends_its_process(loop: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WEDGED.format(loop=loop)], check=False, capture_output=True, timeout=60
    )
    assert ended.returncode == EXIT_WEDGED
    assert b"this worker ends itself" in ended.stderr


class Time:
    """A clock on which each sleep takes as long as the test says."""

    def __init__(self, *sleeps: float) -> None:
        self.now = 1000.0
        self._sleeps = iter(sleeps)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds == TICK_SECONDS
        self.now += next(self._sleeps)


UNSTOPPED = """
import asyncio, ctypes, sys
from rolloutpool_worker.process.event_loop import EventLoop

# What a busy machine does: when Python is gone, the process still takes a while to end.
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(900_000), None)
EventLoop().run(asyncio.sleep(0))
sys.exit(2)
"""


def test_a_process_that_never_stops_its_loop_ends_with_its_own_exit_code() -> None:
    assert subprocess.run([sys.executable, "-c", UNSTOPPED], timeout=60, check=False).returncode == 2


def looks(sleeps: list[float], *, thread: threading.Thread | None = None, closed: bool = False) -> list[str | None]:
    """What a watchdog says about a loop that never ticks, after each of these sleeps."""
    loop = create_autospec(asyncio.AbstractEventLoop, instance=True)
    loop.is_running.return_value, loop.is_closed.return_value = not closed, closed
    time = Time(*sleeps)
    watchdog = Watchdog(loop, thread or threading.current_thread(), clock=time.clock, sleep=time.sleep)
    return [watchdog.look() for _ in sleeps]


def test_a_loop_that_does_not_tick_hangs() -> None:
    enough = int(WEDGED_SECONDS / TICK_SECONDS)
    *before, after = looks([TICK_SECONDS] * (enough + 1))
    assert before == [None] * enough
    assert after is not None
    assert "has not run for 30 s" in after


@pytest.mark.parametrize("tool", [None, "search"])
def test_a_loop_that_stands_still_is_told_with_the_tool_that_holds_it(
    tool: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToolWatch, "step", RunningStep(tool, 0.0) if tool else None)
    *_, after = looks([TICK_SECONDS] * (int(WEDGED_SECONDS / TICK_SECONDS) + 1))
    holds = f": tool {tool} holds it" if tool else ""
    # Each time after twice as long, so that the log is not full of it.
    assert caplog.messages == [f"the event loop has not run for {s} s{holds}" for s in (2, 6, 12, 24)]
    assert after == f"the event loop has not run for 30 s{holds}"


def test_a_process_that_was_stopped_is_no_loop_that_hangs() -> None:
    """Stopped for an hour, shortly before the loop would have counted as hanging; then it hangs indeed."""
    enough = int(WEDGED_SECONDS / TICK_SECONDS)
    sleeps = [TICK_SECONDS] * (enough - 1) + [3600.0] + [TICK_SECONDS] * enough
    assert looks(sleeps) == [None] * len(sleeps)
    assert looks([*sleeps, TICK_SECONDS])[-1] is not None


def test_a_starved_machine_is_no_loop_that_hangs() -> None:
    assert looks([3.0] * 20) == [None] * 20


def test_a_thread_that_has_ended_is_seen_at_once_unless_its_loop_was_closed() -> None:
    ended = threading.Thread(target=str)
    ended.start()
    ended.join()
    assert looks([TICK_SECONDS], thread=ended) == ["the thread of the event loop has ended"]
    assert looks([TICK_SECONDS], thread=ended, closed=True) == [None]
