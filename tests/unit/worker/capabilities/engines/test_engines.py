"""What a process knows of its engines is asked for seldom, and forgotten in time."""

import asyncio
from typing import Any

import pytest

from rolloutpool_common.errors import RolloutError, TrainerStatusError, TrainerUnreachable
from rolloutpool_worker.capabilities.engines.engines import (
    KEEP_SECONDS,
    SILENCE,
    TRIES,
    Engines,
    context_length_of,
)

ENGINE = "http://engine"


class Asked:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.times = 0

    async def __call__(self) -> Any:
        self.times += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pauses:
    """Notes the pauses between questions."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, error: RolloutError, tries: int, seconds: float) -> None:
        self.seconds.append(seconds)
        assert tries == len(self.seconds)
        await asyncio.sleep(0)


def models(*lengths: Any) -> dict[str, Any]:
    return {"data": [{"id": f"m{i}", "max_model_len": length} for i, length in enumerate(lengths)]}


async def test_what_is_not_told_is_not_asked_again_either() -> None:
    engines, ask = Engines(), Asked(None)
    assert [await engines.context_length(ENGINE, None, ask) for _ in range(3)] == [None] * 3
    engines.learn_context_length(ENGINE, None, 100)
    assert await engines.context_length(ENGINE, None, ask) == 100
    assert ask.times == 1


async def test_an_error_is_no_answer() -> None:
    engines = Engines()

    async def fail() -> Any:
        raise LookupError("nobody there")

    with pytest.raises(LookupError, match="nobody"):
        await engines.context_length(ENGINE, None, fail)
    assert await engines.context_length(ENGINE, None, Asked(models(7))) == 7


async def test_an_engine_whose_weights_cannot_be_asked_for_is_asked_again_soon() -> None:
    clock = Clock()
    engines, ask, pauses = Engines(clock), Asked(TrainerUnreachable()), Pauses()
    found = await asyncio.gather(*(engines.version(ENGINE, ask, pauses) for _ in range(8)))
    assert (set(found), ask.times, len(pauses.seconds)) == ({None}, TRIES, TRIES - 1)
    for times in range(3):
        # One question after each pause, and no rollout waits for another one.
        clock.now += SILENCE.longest_s
        assert await engines.version(ENGINE, ask, pauses) is None
        assert (ask.times, len(pauses.seconds)) == (TRIES + times + 1, TRIES - 1)
    ask.answer = "13"
    clock.now += SILENCE.longest_s
    assert clock.now < KEEP_SECONDS
    assert await engines.version(ENGINE, ask, pauses) == "13"


async def test_a_refusal_that_would_come_again_holds_nobody_up() -> None:
    clock = Clock()
    engines, ask, pauses = Engines(clock), Asked(TrainerStatusError(status=401)), Pauses()
    assert [await engines.version(ENGINE, ask, pauses) for _ in range(2)] == [None, None]
    assert (ask.times, pauses.seconds) == (1, [])
    clock.now, ask.answer = SILENCE.longest_s, "12"
    assert await engines.version(ENGINE, ask, pauses) == "12"


@pytest.mark.parametrize(
    ("answer", "model", "length"),
    [
        (models(10), None, 10),
        (models(10, 20), "m1", 20),
        (models(10, 20), None, 10),
        (models(10, None), "m1", 10),  # an adapter
        (models(10, 20), "other", 10),
        (models(None), None, None),
        (models("10"), None, None),
        (models(True), None, None),
        (models(0), None, None),
        ({"data": "x"}, None, None),
        ({"data": [1, None]}, None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_the_length_is_found_among_the_models(answer: Any, model: str | None, length: int | None) -> None:
    assert context_length_of(answer, model) == length
