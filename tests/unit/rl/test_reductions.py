"""Masked sums, means and whitening."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.support.golden_numbers import CLOSE, MASKS

from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch
from rolloutpool_rl.reductions import (
    distributed_whiten,
    masked_whiten,
    sum_of_rollout_mean,
    sum_of_sample_mean,
    sum_of_token,
    token_count,
    token_mean,
)

CASE = MASKS["sum_of_sample_mean"]
X, LENGTHS, LOSS_MASKS = CASE["x"], CASE["response_lengths"], CASE["loss_masks"]


def test_golden_sum_of_sample_mean() -> None:
    assert sum_of_sample_mean(X, LENGTHS, LOSS_MASKS) == pytest.approx(CASE["expected"], abs=CLOSE)


def test_golden_denominators() -> None:
    got = sum_of_sample_mean(X, LENGTHS, LOSS_MASKS, CASE["with_denoms"])
    assert got == pytest.approx(CASE["expected_with_denoms"], abs=CLOSE)


def test_a_sample_of_zeros_adds_nothing_and_divides_by_nothing() -> None:
    zeros = [[0] * 9, [0] * 3]
    assert sum_of_sample_mean(X, LENGTHS, zeros) == CASE["all_zero_mask_expected"]
    assert sum_of_sample_mean(X, LENGTHS, LOSS_MASKS, [0, 0]) == sum_of_token(X, LENGTHS, LOSS_MASKS)


def test_golden_sum_of_token() -> None:
    assert sum_of_token(X, LENGTHS, LOSS_MASKS) == pytest.approx(MASKS["sum_of_token"]["expected"], abs=CLOSE)
    assert token_count(LOSS_MASKS) == MASKS["sum_of_token"]["num_tokens"]


def test_a_sample_of_zeros_counts_one_token() -> None:
    assert token_count([[0, 0], [1, 1, 0]]) == 3


def test_token_mean() -> None:
    assert token_mean([1.0, 10.0, 3.0], [1, 0, 1]) == 2.0
    assert token_mean([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [0, 1]]) == 3.0
    assert token_mean([1.0, 2.0], [0, 0]) == 0.0


def test_tool_tokens_may_hold_anything() -> None:
    x = [1.0, np.nan, np.inf, 3.0]
    mask = [1, 0, 0, 1]
    assert sum_of_sample_mean(x, [4], [mask]) == 2.0
    assert sum_of_token(x, [4], [mask]) == 4.0
    assert token_mean(x, mask) == 2.0
    assert masked_whiten(x, mask)[[0, 3]] == pytest.approx([-(0.5**0.5), 0.5**0.5])


@pytest.mark.parametrize("shift", [True, False])
def test_golden_whitening(shift: bool) -> None:
    case = MASKS["masked_whiten"]
    got = masked_whiten(case["values"], case["mask"], shift_mean=shift)
    assert got == pytest.approx(case["expected" if shift else "expected_no_shift"], abs=CLOSE)


def test_nothing_to_whiten() -> None:
    with pytest.raises(MaskInvalid, match="0 everywhere"):
        masked_whiten([1.0, 2.0], [0, 0])


@pytest.mark.parametrize(
    ("x", "lengths", "masks"),
    [
        ([1.0, 2.0], [3], [[1, 1, 1]]),
        ([1.0, 2.0], [2], [[1, 1], [1]]),
        ([1.0, 2.0], [2], [[1]]),
        ([[1.0], [2.0]], [2], [[1, 1]]),
        ([1.0, 2.0], [3, -1], [[1, 1, 1], []]),
    ],
)
def test_lengths_must_add_up(x: list[float], lengths: list[int], masks: list[list[int]]) -> None:
    with pytest.raises(ShapeMismatch):
        sum_of_sample_mean(x, lengths, masks)


def test_as_many_denominators_as_samples() -> None:
    with pytest.raises(ShapeMismatch, match="1 denominators for 2"):
        sum_of_sample_mean(X, LENGTHS, LOSS_MASKS, [7])


def test_a_mask_is_not_broadcast() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[1\]"):
        token_mean([1.0, 2.0], [1])


@pytest.mark.parametrize("mask", [[1, 2], [0.5, 1], [-1, 1]])
def test_a_mask_is_no_weight(mask: list[float]) -> None:
    with pytest.raises(MaskInvalid, match="0 and 1"):
        token_mean([1.0, 2.0], mask)


def test_masks_of_any_type() -> None:
    for mask in ([True, False], np.array([1.0, 0.0]), np.array([1, 0], dtype=np.uint8)):
        assert token_mean([5.0, 7.0], mask) == 5.0


def test_the_samples_of_a_rollout_share_one_mean() -> None:
    x, lengths, masks = [1.0, 2.0, 4.0, 9.0, 5.0], [2, 2, 1], [[1, 1], [1, 0], [1]]
    # Rollout "a" has three trained tokens in two samples, "b" has one: (1 + 2 + 4) / 3 + 5.
    assert sum_of_rollout_mean(x, lengths, masks, ["a", "a", "b"]) == pytest.approx(7 / 3 + 5)
    assert sum_of_rollout_mean(x, lengths, masks, [0, 1, 2]) == sum_of_sample_mean(x, lengths, masks)
    with pytest.raises(ShapeMismatch, match="2 names of rollouts for 3 samples"):
        sum_of_rollout_mean(x, lengths, masks, ["a", "b"])


class Processes:
    """Processes that add up in lockstep, as an all-reduce does: each call waits for those of all others."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=10)
        self.lock = threading.Lock()
        self.calls: dict[int, list[np.ndarray]] = {}

    def reduce(self, sums: np.ndarray, number: int) -> np.ndarray:
        with self.lock:
            self.calls.setdefault(number, []).append(sums)
        self.barrier.wait()
        return np.asarray(np.sum(self.calls[number], axis=0))


def test_whitening_over_processes_is_whitening_of_all() -> None:
    values = np.random.default_rng(3).normal(1e3, 2.0, size=30)
    mask = np.array([1, 1, 0] * 10)
    mask[20:] = 0  # one process has nothing to train, and still takes part
    parts = [slice(0, 8), slice(8, 20), slice(20, 30)]
    processes = Processes(len(parts))

    def whiten(part: slice) -> np.ndarray:
        numbers = itertools.count()
        own = distributed_whiten(values[part], mask[part], lambda sums: processes.reduce(sums, next(numbers)))
        return np.asarray(own)

    with ThreadPoolExecutor(len(parts)) as threads:
        together = np.concatenate(list(threads.map(whiten, parts)))
    assert together == pytest.approx(masked_whiten(values, mask), abs=1e-9)
    assert together[mask == 1].std(ddof=1) == pytest.approx(1.0, abs=1e-6)
    assert {len(calls) for calls in processes.calls.values()} == {3}


def test_whitening_may_change_its_sums_in_place() -> None:
    def doubled(sums: np.ndarray) -> np.ndarray:
        sums *= 2
        return sums

    twice = distributed_whiten([1.0, 2.0, 4.0], [1, 1, 1], doubled)
    assert twice == pytest.approx(masked_whiten([1.0, 2.0, 4.0] * 2, [1] * 6)[:3])
