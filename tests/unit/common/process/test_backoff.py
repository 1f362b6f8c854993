"""Delays double from the first one to the longest one, and jitter only shortens them."""

import math

import pytest

from rolloutpool_common.process.backoff import Backoff


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(0.5, 15.0, jitter=False), [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]),
        (Backoff(1.0, jitter=False), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
        (Backoff(5.0, 5.0, jitter=False), [5.0] * 7),
    ],
)
def test_delays_double_up_to_the_longest(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay_s(failures) for failures in range(1, 8)] == delays


def test_jitter_takes_up_to_half_of_each_delay() -> None:
    backoff = Backoff(0.5, 30.0)
    for failures, full in [(1, 0.5), (3, 2.0), (9, 30.0)]:
        delays = [backoff.delay_s(failures) for _ in range(200)]
        assert full / 2 <= min(delays) < max(delays) <= full


def test_an_endless_outage_needs_no_larger_number_than_a_float_has() -> None:
    assert Backoff(0.1, 5.0, jitter=False).delay_s(1_000_000) == 5.0
    assert math.isfinite(Backoff(0.1, jitter=False).delay_s(1_000_000))
