"""Deadlines: all expire that nobody took back, none early, none later than promised, and nothing is kept of them."""

import asyncio
import random
from collections.abc import Callable

import pytest

from rolloutpool_worker.policy.deadlines import LATE_SECONDS, Deadlines


class Call:
    """Something with a deadline."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self.due = asyncio.get_running_loop().time() + seconds
        self.expire = then


@pytest.mark.parametrize("seed", range(5))
async def test_each_expires_once_in_its_time_or_was_taken_back(seed: int) -> None:
    chance, loop, deadlines = random.Random(seed), asyncio.get_running_loop(), Deadlines()
    expired: dict[Call, float] = {}
    due: list[Call] = []

    def add(seconds: float) -> Call:
        def expire() -> None:
            assert call not in expired
            expired[call] = loop.time()

        call = Call(seconds, expire)
        deadlines.add(call)
        return call

    for _ in range(200):
        call = add(chance.choice([0.02, 0.05, 0.1, 5.0]))
        if chance.random() < 0.2:
            # As the rest of an error's body has less time than the reply had.
            call.due = loop.time() + 0.02
            deadlines.add(call)
        if call.due > loop.time() + 1 or chance.random() < 0.7:
            deadlines.waiting.discard(call)
        else:
            due.append(call)
        if chance.random() < 0.1:
            await asyncio.sleep(chance.random() * 0.02)
    await asyncio.sleep(0.1 + 2 * LATE_SECONDS)
    assert expired.keys() == set(due)
    assert all(expired[call] - call.due >= 0 for call in due)
    assert deadlines.waiting == set()


async def test_one_that_expires_may_add_and_take_out_others() -> None:
    deadlines, said = Deadlines(), list[str]()

    def first() -> None:
        said.append("first")
        deadlines.waiting.discard(second)
        deadlines.add(Call(0.02, lambda: said.append("third")))

    second = Call(0.021, lambda: said.append("second"))
    deadlines.add(Call(0.02, first))
    deadlines.add(second)
    await asyncio.sleep(0.03 + 2 * LATE_SECONDS)
    assert said == ["first", "third"]


async def test_calls_cost_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[float]()
    real = loop.call_at

    def call_at(when: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
        timers.append(when)
        return real(when, *arguments, **options)  # type: ignore[arg-type]

    deadlines = Deadlines()
    monkeypatch.setattr(loop, "call_at", call_at)
    for _ in range(1000):
        call = Call(300.0, lambda: None)
        deadlines.add(call)
        deadlines.waiting.discard(call)
    assert len(timers) == 1
    deadlines.close()
    assert deadlines.waiting == set()


async def test_one_that_fails_takes_no_limit_from_others() -> None:
    loop, deadlines, expired, said = asyncio.get_running_loop(), Deadlines(), asyncio.Event(), list[object]()
    loop.set_exception_handler(lambda _, context: said.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    deadlines.add(Call(0.01, fail))
    deadlines.add(Call(0.1, expired.set))
    async with asyncio.timeout(5):
        await expired.wait()
    assert list(map(type, said)) == [ValueError]
