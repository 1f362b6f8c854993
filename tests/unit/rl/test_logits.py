"""Which logits belong to a response."""

import numpy as np
import pytest

from rolloutpool_rl.errors import ShapeMismatch
from rolloutpool_rl.logits import response_slice, response_slices


def predictions(tokens: list[int]) -> np.ndarray:
    """At each position the token that a perfect model predicts there: the next one."""
    return np.array([*tokens[1:], -1])


def test_a_logit_predicts_the_next_token() -> None:
    tokens = [10, 11, 12, 13, 14]
    assert predictions(tokens)[response_slice(5, 2)].tolist() == [13, 14]
    assert predictions(tokens)[response_slice(5, 4)].tolist() == [11, 12, 13, 14]
    assert predictions(tokens)[response_slice(5, 0)].tolist() == []


def test_the_example_of_100_50_200_100() -> None:
    assert response_slice(450, 350) == slice(99, 449)


@pytest.mark.parametrize(("total", "response"), [(5, 5), (5, 6), (5, -1), (0, 0)])
def test_without_a_prompt_nothing_predicts_the_first_token(total: int, response: int) -> None:
    with pytest.raises(ShapeMismatch):
        response_slice(total, response)


def test_packed() -> None:
    first, second = [10, 11, 12], [20, 21, 22, 23]
    flat = np.concatenate([predictions(first), predictions(second)])
    slices = response_slices([3, 4], [1, 2])
    assert [flat[s].tolist() for s in slices] == [[12], [22, 23]]


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
