"""A dead port is taken out, alone; and comes back as soon as anything answers there."""

import pytest

from rolloutpool_worker.policy.breaker import FAILURES, PAUSE, Breakers, TrainerDown, waited_s

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


def test_when_its_pause_is_over_one_may_try_and_the_others_wait() -> None:
    clock = Clock()
    breakers = taken_out(clock)
    # A trainer that restarts is away for seconds, so the first pauses are short.
    for pause in (1.0, 2.0, 4.0, 8.0, PAUSE.longest_s, PAUSE.longest_s):
        clock.now += pause - 0.1
        with pytest.raises(TrainerDown):
            breakers.check(DEAD)
        clock.now += 0.2
        assert breakers.check(DEAD)
        with pytest.raises(TrainerDown):
            breakers.check(DEAD)
        breakers.failed(DEAD, "refused")
        # Many calls may have begun before the port was found dead; they prolong nothing.
        for _ in range(20):
            breakers.failed(DEAD, "refused")
    clock.now += PAUSE.longest_s + 0.1
    assert breakers.check(DEAD)
    breakers.worked(DEAD)
    assert not any(breakers.check(DEAD) for _ in range(10))


def test_one_that_tries_and_says_nothing_holds_the_others_up_for_a_bounded_time() -> None:
    clock = Clock()
    breakers = taken_out(clock)
    clock.now += 1.1
    assert breakers.check(DEAD)
    clock.now += PAUSE.longest_s + 0.1
    assert breakers.check(DEAD)


def test_what_a_rollout_has_waited_is_the_sum_of_its_pauses() -> None:
    assert [waited_s(deferrals) for deferrals in (0, 1, 4, 5)] == [0.0, 1.0, 15.0, 25.0]
