"""A beat says how long ago the process got on, and its answer reaches the event loop."""

import asyncio
import threading
import time

import pytest

from rolloutpool_common.store.workers import Beat
from rolloutpool_worker.process.pulse import Pulse


def said(pulse: Pulse) -> dict[str, object]:
    arguments = pulse.beat()
    assert arguments is not None
    return dict(zip(arguments[1::2], arguments[2::2], strict=True))


async def test_nothing_is_said_before_the_first_turn() -> None:
    pulse = Pulse("w", time.perf_counter)
    assert pulse.beat() is None
    pulse.turn(Beat(running=3, tokenizers={}))
    assert said(pulse)["running"] == 3


async def test_the_three_ages_are_of_three_things() -> None:
    now = time.perf_counter()
    pulse = Pulse("w", lambda: now - 30)
    pulse._took = now - 20
    pulse.turn(Beat(running=0, tokenizers={}))
    pulse._turned = now - 10
    ages = [int(str(said(pulse)[name])) // 1000 for name in ("turned_ms", "took_ms", "wrote_ms")]
    assert ages == [10, 20, 30]
    pulse.took()
    pulse.turn(Beat(running=0, tokenizers={}))
    ages = [int(str(said(pulse)[name])) // 1000 for name in ("turned_ms", "took_ms", "wrote_ms")]
    assert ages == [0, 0, 30]


async def test_an_answer_that_a_thread_hears_reaches_the_loop() -> None:
    pulse = Pulse("w", time.perf_counter)
    pulse.turn(Beat(running=0, tokenizers={}))
    answer = [b"known", 1, b"condemned", 1, b"epoch", 4, b"stop", [b"t"], b"suspects", 0, b"doubts", 3, b"notes", 2]
    threading.Thread(target=pulse.hear, args=(answer,)).start()
    async with asyncio.timeout(10):
        heard = await pulse.answers.get()
    assert (heard.known, heard.condemned, heard.epoch, heard.stop, heard.notes["notes"]) == (True, True, 4, ["t"], 2)


async def test_the_end_waits_for_a_beat_that_is_on_its_way_and_no_other_follows() -> None:
    pulse = Pulse("w", time.perf_counter)
    pulse.turn(Beat(running=0, tokenizers={}))
    assert pulse.beat() is not None
    ending = asyncio.create_task(pulse.end())
    await asyncio.sleep(0.05)
    assert not ending.done()
    assert pulse.beat() is None
    async with asyncio.timeout(10):
        await ending


async def test_the_end_waits_no_longer_than_a_beat_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpool_worker.process.pulse.ANSWER_SECONDS", 0.05)
    pulse = Pulse("w", time.perf_counter)
    pulse.turn(Beat(running=0, tokenizers={}))
    assert pulse.beat() is not None
    async with asyncio.timeout(10):
        await pulse.end()
