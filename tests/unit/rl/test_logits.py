"""Which logits belong to a response."""

import numpy as np
import pytest

from rolloutpool_rl.errors import ShapeMismatch
from rolloutpool_rl.logits import get_values, response_slice, response_slices, token_logprobs


def predictions(tokens: list[int]) -> np.ndarray:
    """At each position the token that a perfect model predicts there: the next one."""
    return np.array([*tokens[1:], -1])


def test_a_logit_predicts_the_next_token() -> None:
    tokens = [10, 11, 12, 13, 14]
    assert predictions(tokens)[response_slice(5, 2)].tolist() == [13, 14]
    assert predictions(tokens)[response_slice(5, 4)].tolist() == [11, 12, 13, 14]
    assert predictions(tokens)[response_slice(5, 0)].tolist() == []


@pytest.mark.parametrize(("total", "response"), [(5, 5), (5, 6), (5, -1), (0, 0)])
def test_without_a_prompt_nothing_predicts_the_first_token(total: int, response: int) -> None:
    with pytest.raises(ShapeMismatch):
        response_slice(total, response)


def test_padded() -> None:
    flat = np.concatenate([np.append(predictions([10, 11, 12]), [-9, -9]), np.append(predictions([20, 21]), [-9] * 3)])
    slices = response_slices([3, 2], [2, 1], padded_length=5)
    assert [flat[s].tolist() for s in slices] == [[11, 12], [21]]


def test_lengths_that_cannot_be() -> None:
    with pytest.raises(ShapeMismatch, match="longer than 4"):
        response_slices([5], [1], padded_length=4)
    with pytest.raises(ShapeMismatch, match="2 total and 1"):
        response_slices([5, 5], [1])
    with pytest.raises(ShapeMismatch):
        response_slices([5, 2], [1, 2])
    with pytest.raises(ShapeMismatch):
        response_slice(5, 2, offset=-1)


def test_log_probabilities_are_those_of_a_softmax() -> None:
    logits = np.random.default_rng(7).normal(size=(2, 3, 5)) * 4
    ids = np.array([[0, 4, 2], [1, 1, 3]])
    exponentials = np.exp(logits)
    expected = np.log(exponentials / exponentials.sum(-1, keepdims=True))
    got = token_logprobs(logits, ids)
    assert got.shape == (2, 3)
    for place in np.ndindex(2, 3):
        assert got[place] == pytest.approx(expected[place][ids[place]])
    warm = np.exp(logits / 0.5)
    assert token_logprobs(logits, ids, temperature=0.5)[1, 2] == pytest.approx(np.log(warm[1, 2, 3] / warm[1, 2].sum()))


def test_log_probabilities_of_extreme_logits() -> None:
    assert token_logprobs([[1e4, 0.0]], [0]).tolist() == [0.0]
    assert token_logprobs([[1e4, 0.0]], [1]).tolist() == [-1e4]
    assert token_logprobs([[0.0, -np.inf]], [0]).tolist() == [0.0]
    assert token_logprobs(np.zeros((0, 4)), np.zeros(0, dtype=int)).shape == (0,)


def test_ids_that_do_not_fit_the_logits() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[2\] do not fit logits \[1, 2\]"):
        token_logprobs([[0.0, 1.0]], [0, 1])
    # numpy would take -1 for the last column without a word.
    for wrong in (-1, 2):
        with pytest.raises(ShapeMismatch, match="from 0 to 1"):
            token_logprobs([[0.0, 1.0]], [wrong])
    with pytest.raises(ValueError, match="greedy"):
        token_logprobs([[0.0, 1.0]], [0], temperature=0.0)


def test_values_are_those_before_each_token() -> None:
    packed = np.arange(9.0)
    assert [values.tolist() for values in get_values(packed, [5, 4], [2, 3])] == [[2.0, 3.0], [5.0, 6.0, 7.0]]
    padded = np.arange(12.0)[:, None]
    assert [values.tolist() for values in get_values(padded, [5, 4], [2, 3], padded_length=6)] == [
        [2.0, 3.0],
        [6.0, 7.0, 8.0],
    ]
    for outputs in (np.arange(8.0), np.zeros((9, 2))):
        with pytest.raises(ShapeMismatch, match=r"\[9\] or \[9, 1\]"):
            get_values(outputs, [5, 4], [2, 3])
