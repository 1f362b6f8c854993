"""A worker that fills up leaves time for others; one that replaces what has ended does not pause."""

import pytest

from rolloutpool_worker.queue.pace import PAUSE_SECONDS, SPAN_SECONDS, Pace


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def reserves(pace: Pace) -> bool:
    return pace.may_reserve


def test_an_idle_worker_takes_at_once_and_then_pauses_for_each_rollout(clock: Clock) -> None:
    pace = Pace(clock=clock)
    pauses: list[float] = []
    pace.on_pause = pauses.append
    pace.took(8, 8)
    assert pauses == [pytest.approx(8 * PAUSE_SECONDS)]
    clock.now += pauses[0] - 1e-3
    assert not reserves(pace)
    clock.now += 2e-3
    assert reserves(pace)
    pace.took(8, 16)
    assert pauses[1] == pytest.approx(8 * PAUSE_SECONDS)


def test_what_replaces_ended_rollouts_costs_no_pause(clock: Clock) -> None:
    pace = Pace(clock=clock)
    pace.took(100, 100)
    clock.now += SPAN_SECONDS
    pace.took(1, 100)
    clock.now += SPAN_SECONDS
    for _ in range(1000):
        # One ended, and one comes.
        clock.now += 0.002
        pace.took(1, 100)
        assert reserves(pace)


def test_what_a_worker_had_long_ago_does_not_count(clock: Clock) -> None:
    pace = Pace(clock=clock)
    pace.took(100, 100)
    clock.now += 3 * SPAN_SECONDS
    pace.took(8, 8)
    assert not reserves(pace)
