"""Short computations stay on the loop's thread, long ones leave it."""

import threading

import pytest

from rolloutpool_worker.conversation.off_loop import OFF_LOOP, characters, off_loop


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


def test_only_texts_count() -> None:
    assert characters([{"content": "abc"}, {"content": None}, {"content": [{"type": "text"}]}, {"content": "d"}]) == 4
