"""Delays double from the first one to the longest one, and jitter only shortens them."""

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
