"""A dead port is taken out, alone; and comes back as soon as anything answers there."""

import pytest

from rolloutpool_worker.policy.breaker import FAILURES, OPEN_SECONDS, Breakers, TrainerDown

DEAD, ALIVE = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken_out(clock: Clock) -> Breakers:
    """Breakers that found a port dead."""
    breakers = Breakers(clock)
    for _ in range(FAILURES):
        breakers.check(DEAD)
        breakers.failed(DEAD, "refused")
    return breakers


def test_after_so_many_refusals_in_a_row_a_port_is_down_and_no_other() -> None:
    breakers = taken_out(Clock())
    with pytest.raises(TrainerDown, match=DEAD):
        breakers.check(DEAD)
    breakers.check(ALIVE)


def test_an_answer_in_between_begins_the_count_anew() -> None:
    breakers = Breakers(Clock())
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breakers.failed(DEAD, "refused")
        breakers.worked(DEAD)
        breakers.check(DEAD)


def test_when_its_time_is_over_one_may_try_and_the_others_wait() -> None:
    clock = Clock()
    breakers = taken_out(clock)
    clock.now += OPEN_SECONDS - 0.1
    with pytest.raises(TrainerDown):
        breakers.check(DEAD)
    clock.now += 0.2
    breakers.check(DEAD)
    with pytest.raises(TrainerDown):
        breakers.check(DEAD)
    # It did not get through: the next one waits for the whole time again.
    breakers.failed(DEAD, "refused")
    clock.now += OPEN_SECONDS - 0.1
    with pytest.raises(TrainerDown):
        breakers.check(DEAD)
    clock.now += 0.2
    breakers.check(DEAD)
    breakers.worked(DEAD)
    for _ in range(10):
        breakers.check(DEAD)
