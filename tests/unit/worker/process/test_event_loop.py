"""The loop of a worker: coroutines from other threads, and an end of the process where it does not get on."""

import asyncio
import subprocess
import sys
import threading

import pytest

from rolloutpool_worker.process.event_loop import EXIT_WEDGED, EventLoop


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
