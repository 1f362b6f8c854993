"""Deadlines: all expire that nobody took back, none early, none later than promised, and nothing is kept of them."""

import asyncio
import random
from functools import partial

import pytest

from rolloutpool_worker.policy.deadlines import Deadlines


@pytest.mark.parametrize("seed", range(5))
async def test_each_expires_once_in_its_time_or_was_taken_back(seed: int) -> None:
    chance, loop, deadlines = random.Random(seed), asyncio.get_running_loop(), Deadlines()
    expired: dict[int, float] = {}
    due: dict[int, float] = {}

    def expire(number: int) -> None:
        assert number not in expired
        expired[number] = loop.time()

    for number in range(200):
        length = chance.choice([0.02, 0.05, 0.1])
        due[number] = loop.time() + length
        deadline = deadlines.set(length, partial(expire, number))
        if chance.random() < 0.7:
            deadline.cancel()
            deadline.cancel()
            del due[number]
        if chance.random() < 0.1:
            await asyncio.sleep(chance.random() * 0.02)
    await asyncio.sleep(0.3)
    assert expired.keys() == due.keys()
    assert all(expired[number] >= when for number, when in due.items())
    assert deadlines._rows == {}


async def test_one_that_expires_may_set_and_take_back_others() -> None:
    deadlines, said = Deadlines(), list[str]()

    def first() -> None:
        said.append("first")
        second.cancel()
        deadlines.set(0.02, lambda: said.append("third"))

    deadlines.set(0.02, first)
    second = deadlines.set(0.02, lambda: said.append("second"))
    await asyncio.sleep(0.2)
    assert said == ["first", "third"]


async def test_a_row_of_calls_costs_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[float]()
    real = loop.call_at

    def call_at(when: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
        timers.append(when)
        return real(when, *arguments, **options)  # type: ignore[arg-type]

    deadlines = Deadlines()
    monkeypatch.setattr(loop, "call_at", call_at)
    for _ in range(1000):
        deadlines.set(300.0, lambda: None).cancel()
    assert len(timers) == 1
    deadlines.close()
    assert deadlines._rows == {}
