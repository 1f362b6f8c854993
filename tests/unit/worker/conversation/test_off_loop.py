"""Long work leaves the event loop, short work does not pay for a thread."""

import threading

import pytest

from rolloutpool_worker.conversation.off_loop import OFF_LOOP, characters, off_loop


@pytest.mark.parametrize(("size", "in_thread"), [(0, False), (OFF_LOOP, False), (OFF_LOOP + 1, True)])
async def test_only_long_work_is_done_in_a_thread(size: int, in_thread: bool) -> None:
    thread = await off_loop(size, threading.get_ident)
    assert (thread != threading.get_ident()) is in_thread


async def test_the_function_s_result_and_error_come_back() -> None:
    assert await off_loop(OFF_LOOP + 1, int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await off_loop(OFF_LOOP + 1, int, "x")


def test_only_text_is_counted() -> None:
    assert characters([{"content": "four"}, {"content": None}, {"content": [{"type": "text", "text": "no"}]}]) == 4
