"""The mask check: what is right passes, everything else is refused with what was expected and received."""

import json
from typing import Any

import pytest

from rolloutpool_trainer.endpoint.mask_check import MaskMismatch, check_mask


def details(mask: object, expected: int, turn: int = 2) -> dict[str, Any]:
    with pytest.raises(MaskMismatch) as caught:
        check_mask(mask, expected, rollout_id="r", turn=turn)
    assert caught.value.status == 422
    error: dict[str, Any] = json.loads(caught.value.body())["error"]
    assert error["type"] == "mask_mismatch"
    assert error["rollout_id"] == "r"
    assert error["turn"] == turn
    return error


@pytest.mark.parametrize(("length", "expected"), [(19, 20), (21, 20), (1, 0), (0, 5), (4, -4)])
def test_wrong_length(length: int, expected: int) -> None:
    error = details([0] * length, expected)
    assert (error["expected"], error["received"]) == (expected if expected > 0 else None, length)


@pytest.mark.parametrize("value", [2, -1, True, False, 0.0, 1.5, None, "0", [0], {}])
def test_values_other_than_zero_and_one(value: object) -> None:
    error = details([0, value], 2)
    assert error["position"] == 1
    assert error["expected"] == 2


def test_a_one_for_what_nobody_sampled() -> None:
    error = details([0, 1, 0], 3)
    assert (error["position"], error["received"]) == (1, 1)
