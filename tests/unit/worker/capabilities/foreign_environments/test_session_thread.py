"""A session's thread: calls in order, in one thread, whatever they raise; and one that never returns."""

import asyncio
import threading
import time

from rolloutpool_worker.capabilities.foreign_environments.session_thread import SessionThread


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
