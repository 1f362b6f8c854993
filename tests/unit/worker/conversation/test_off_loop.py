"""Short computations stay on the loop's thread, long ones leave it."""

import threading
from typing import Any

import pytest

from rolloutpool_worker.conversation.off_loop import MESSAGE, OFF_LOOP, off_loop, rendering_size


@pytest.mark.parametrize(("size", "on_loop"), [(0, True), (OFF_LOOP, True), (OFF_LOOP + 1, False)])
async def test_only_what_is_long_runs_in_a_thread(size: int, on_loop: bool) -> None:
    def where(given: str) -> tuple[str, threading.Thread]:
        return given, threading.current_thread()

    given, thread = await off_loop(size, where, "x")
    assert given == "x"
    assert (thread is threading.current_thread()) == on_loop


async def test_an_error_passes() -> None:
    def fail() -> None:
        raise KeyError("x")

    for size in (0, OFF_LOOP + 1):
        with pytest.raises(KeyError):
            await off_loop(size, fail)


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
