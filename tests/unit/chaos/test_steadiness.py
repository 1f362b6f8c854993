"""A soak's verdict convicts what grows, what ended, and what was left."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.steadiness import ALLOWANCE, Steadiness, judge_steadiness, show_steadiness

Entry = dict[str, Any]


def record(measure: str, height: Callable[[float], float], *more: Entry) -> list[Entry]:
    """An hour of samples of one measure, as a function of the share of the hour that is over."""
    samples = [
        {"event": "sample", "of": "api-0 1", "uses": {measure: height(n / 360)}, "clock": n * 10.0, "at": n * 10.0}
        for n in range(360)
    ]
    return [{"event": "begin", "at": 0.0}, *samples, *more, {"event": "end", "at": 3600.0}]


def test_what_stays_the_same_is_steady() -> None:
    verdict = judge_steadiness(record("memory, MB", lambda over: 150.0 + (over * 1000) % 7))
    assert verdict.steady
    assert "steady over 3600 s" in show_steadiness(verdict)


@pytest.mark.parametrize("measure", ALLOWANCE)
def test_what_grows_is_not(measure: str) -> None:
    verdict = judge_steadiness(record(measure, lambda over: 100.0 + 1000 * over))
    assert not verdict.steady
    assert verdict.series[0].per_hour == pytest.approx(1000, rel=0.02)
    assert "NOT steady" in show_steadiness(verdict)


def test_growth_in_the_first_minutes_is_not_held_against_it() -> None:
    assert judge_steadiness(record("memory, MB", lambda over: min(over, 0.1) * 2000)).steady


def test_growth_within_the_allowance_is_not_either() -> None:
    assert judge_steadiness(record("threads", lambda over: 10 + 3 * over)).steady


def test_a_worker_that_ended_is_told() -> None:
    ended = {"event": "gone", "worker": "w", "pid": 1, "host": "host-0", "at": 5.0}
    verdict = judge_steadiness(record("threads", lambda _: 10.0, ended))
    assert (verdict.steady, verdict.ended) == (False, ["w of host-0"])


def test_an_isolated_worker_may_end() -> None:
    member = {"event": "member", "worker": "w", "pid": 1, "host": "host-0", "isolated": True, "at": 4.0}
    assert judge_steadiness(record("threads", lambda _: 10.0, member, {**member, "event": "gone"})).steady


def test_keys_that_are_left_are_told() -> None:
    left = {"event": "left", "keys": ["rp:batch:b"], "at": 3700.0}
    verdict = judge_steadiness([*record("threads", lambda _: 10.0), left])
    assert (verdict.steady, verdict.left) == (False, ["rp:batch:b"])


def test_a_process_with_few_samples_and_a_soak_with_none_prove_nothing() -> None:
    few = record("threads", lambda _: 10.0)[:8]
    assert judge_steadiness(few).short == ["api-0 1"]
    assert not judge_steadiness(few).steady
    assert not Steadiness([], [], [], [], {}, 0.0).steady
