"""PPO's losses, KL and entropy under the mask, against the formulas written out."""

from typing import Any

import numpy as np
import pytest

from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch
from rolloutpool_rl.losses import entropy, kl, policy_loss, value_loss
from rolloutpool_rl.reductions import token_mean

MASK = [1, 0, 1, 1]


def test_policy_loss_token_by_token() -> None:
    new, old, gain = np.log([1.5, 9.0, 0.5, 1.1]), np.log([1.0, 1.0, 1.0, 1.0]), [2.0, 5.0, -2.0, 1.0]
    got = policy_loss(new, old, gain, MASK, clip=0.2)
    # ratio 1.5 is capped at 1.2 for a good token; 0.5 is capped at 0.8 for a bad one; 1.1 is inside.
    assert got.loss == pytest.approx([-2.4, 0.0, 1.6, -1.1])
    assert got.clipped.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert got.ppo_kl == pytest.approx([-np.log(1.5), 0.0, np.log(2), -np.log(1.1)])
    assert token_mean(got.clipped, MASK) == pytest.approx(2 / 3)


def test_the_clip_only_ever_makes_the_objective_worse() -> None:
    got = policy_loss(np.log([0.5, 2.0]), [0.0, 0.0], [2.0, -2.0], [1, 1])
    assert got.loss == pytest.approx([-1.0, 4.0])
    assert got.clipped.tolist() == [0.0, 0.0]


def test_the_upper_limit_may_differ() -> None:
    got = policy_loss(np.log([1.5]), [0.0], [1.0], [1], clip=0.2, clip_high=0.28)
    assert got.loss == pytest.approx([-1.28])


def test_value_loss_token_by_token() -> None:
    got = value_loss([1.0, 9.0, 0.1, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 3.0], MASK, clip=0.2)
    # 1.0 hits the return, but only 0.2 of the step counts; 0.1 is inside; 2.0 counts as 0.2.
    assert got.loss == pytest.approx([0.64, 0.0, 0.81, 7.84])
    assert got.clipped.tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.5, 0.0, -0.5]), ("k2", [0.125, 0.0, 0.125]), ("k3", [np.exp(-0.5) - 0.5, 0.0, np.exp(0.5) - 1.5])],
)
def test_kl(estimator: Any, expected: list[float]) -> None:
    got = kl([-1.0, -3.0, -1.5], [-1.5, -9.0, -1.0], [1, 0, 1], estimator=estimator)
    assert got == pytest.approx(expected)


def test_kl_estimators_agree_with_the_exact_kl_in_the_mean() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    exact = float((p * np.log(p / q)).sum())
    for estimator in ("k1", "k3"):
        each = kl(np.log(p), np.log(q), [1, 1, 1], estimator=estimator)
        assert float((p * each).sum()) == pytest.approx(exact)


def test_there_is_no_k4() -> None:
    with pytest.raises(ValueError, match="'k4'"):
        kl([0.0], [0.0], [1], estimator="k4")  # type: ignore[arg-type]


def test_entropy() -> None:
    logits = [[0.0, 0.0, 0.0, 0.0], [1e4, 0.0, 0.0, 0.0], [0.0, 0.0, -np.inf, -np.inf], [5.0, 1.0, 2.0, 3.0]]
    p = np.exp([5.0, 1.0, 2.0, 3.0]) / np.exp([5.0, 1.0, 2.0, 3.0]).sum()
    expected = [np.log(4), 0.0, np.log(2), -(p * np.log(p)).sum()]
    assert entropy(logits, [1, 1, 1, 1]) == pytest.approx(expected)
    assert entropy(logits, [0, 0, 1, 0]) == pytest.approx([0.0, 0.0, np.log(2), 0.0])


def test_what_lies_at_tool_tokens_is_not_read() -> None:
    bad = [0.0, np.nan, -np.inf, 0.0]
    mask = [1, 0, 0, 1]
    results = [
        policy_loss(bad, bad, bad, mask).loss,
        value_loss(bad, bad, bad, mask).loss,
        kl(bad, bad, mask, estimator="k3"),
        entropy([[value, 0.0] for value in bad], mask) - [np.log(2), 0, 0, np.log(2)],
    ]
    for result in results:
        assert result == pytest.approx([0.0, 0.0, 0.0, 0.0])


def test_results_are_float64() -> None:
    x = np.array([-1.0], dtype=np.float32)
    assert policy_loss(x, x, x, [1]).loss.dtype == np.float64


def test_shapes_and_masks() -> None:
    with pytest.raises(ShapeMismatch, match="old_log_probs"):
        policy_loss([0.0, 0.0], [0.0], [0.0, 0.0], [1, 1])
    with pytest.raises(ShapeMismatch):
        value_loss([0.0], [0.0], [0.0], [[1]])
    with pytest.raises(ShapeMismatch, match=r"\[R, V\]"):
        entropy([0.0], [1])
    with pytest.raises(MaskInvalid):
        kl([0.0], [0.0], [2], estimator="k1")
