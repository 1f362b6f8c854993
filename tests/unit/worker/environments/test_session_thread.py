"""A session's thread: calls in order, in one thread, whatever they raise; and one that never returns."""

import asyncio
import threading
import time

import pytest

from rolloutpool_worker.environments.session_thread import SessionThread


async def test_calls_are_made_in_order_in_one_thread_which_is_not_the_loops() -> None:
    thread = SessionThread("game")
    made: list[int] = []

    def call(number: int) -> tuple[int, str]:
        made.append(number)
        return threading.get_ident(), threading.current_thread().name

    answers = await asyncio.gather(*(thread.run(call, number) for number in range(5)))
    assert made == list(range(5))
    ((ident, name),) = set(answers)
    assert (ident != threading.get_ident(), name) == (True, "game")
    thread.end()


async def test_what_a_call_raises_is_raised_and_the_thread_goes_on() -> None:
    thread = SessionThread("game")

    def call(error: BaseException) -> None:
        raise error

    for error, raised in (
        (ValueError("x"), ValueError),
        # A future takes none.
        (StopIteration(), RuntimeError),
        (SystemExit(3), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with pytest.raises(raised):
            await thread.run(call, error)
    assert await thread.run(lambda: 7) == 7
    thread.end()


async def test_one_that_hangs_is_not_waited_for_and_ends_when_it_returns() -> None:
    thread, go_on, done = SessionThread("hanging"), threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await thread.run(go_on.wait)
    thread.end(done.set)
    (running,) = [one for one in threading.enumerate() if one.name == "hanging"]
    # It holds up no process that ends.
    assert running.daemon
    assert not done.is_set()
    go_on.set()
    await asyncio.to_thread(running.join, 5)
    assert done.is_set()
    assert not running.is_alive()


async def test_what_the_last_call_raises_is_told_to_nobody() -> None:
    thread = SessionThread("last")

    def fail() -> None:
        raise SystemExit(3)

    await thread.run(time.time)
    (running,) = [one for one in threading.enumerate() if one.name == "last"]
    thread.end(fail)
    await asyncio.to_thread(running.join, 5)
    assert not running.is_alive()
    # One that never ran starts none.
    SessionThread("never").end(fail)
    assert not [one for one in threading.enumerate() if one.name == "never"]
