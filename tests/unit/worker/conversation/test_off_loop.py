"""Short computations stay on the loop's thread, long ones leave it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rolloutpool_worker.conversation.off_loop import (
    MESSAGE,
    OFF_LOOP,
    change_off_loop,
    off_loop,
    rendering_size,
)


@pytest.mark.parametrize(("size", "on_loop"), [(0, True), (OFF_LOOP, True), (OFF_LOOP + 1, False)])
async def test_only_what_is_long_runs_in_a_thread(size: int, on_loop: bool) -> None:
    def where(given: str) -> tuple[str, threading.Thread]:
        return given, threading.current_thread()

    given, thread = await off_loop(size, where, "x")
    assert given == "x"
    assert (thread is threading.current_thread()) == on_loop


@pytest.mark.parametrize("run", [off_loop, change_off_loop])
@pytest.mark.parametrize("size", [0, OFF_LOOP + 1])
async def test_an_error_passes(run: Callable[..., Awaitable[object]], size: int) -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run(size, fail)


async def test_a_cancellation_waits_for_the_end_of_a_change() -> None:
    begun, go_on, changed = threading.Event(), threading.Event(), []

    def change() -> None:
        begun.set()
        assert go_on.wait(20)
        changed.append(threading.current_thread())

    task = asyncio.create_task(change_off_loop(OFF_LOOP + 1, change))
    await asyncio.to_thread(begun.wait, 20)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(changed) == 1
    assert changed[0] is not threading.current_thread()
    # What is short stays here, and returns what the function returns.
    assert await change_off_loop(OFF_LOOP, threading.current_thread) is threading.current_thread()


def test_texts_count_and_so_does_each_message() -> None:
    messages: list[dict[str, Any]] = [
        {"content": "abc"},
        {"content": None},
        {"content": [{"type": "text"}]},
        {"content": "d"},
    ]
    assert rendering_size(messages) == 4 + 4 * MESSAGE
    assert rendering_size([{"content": [{"type": "text", "text": "abc"}, {"type": "image"}]}]) == 3 + MESSAGE


def test_a_thousand_tiny_results_are_long() -> None:
    assert rendering_size([{"role": "tool", "content": "8"}] * 1000) > OFF_LOOP
    assert rendering_size([{"role": "tool", "content": "8"}] * 8) < OFF_LOOP


@pytest.mark.parametrize("arguments", ["x" * 20_000, {"text": "x" * 20_000}, {"texts": [["x" * 10_000] * 2]}])
def test_arguments_of_calls_count(arguments: object) -> None:
    turn = {"content": None, "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
    assert rendering_size([turn]) > OFF_LOOP
    many = [{"function": {"name": "add", "arguments": "{}"}}] * 1000
    assert rendering_size([{"content": None, "tool_calls": many}]) > OFF_LOOP
