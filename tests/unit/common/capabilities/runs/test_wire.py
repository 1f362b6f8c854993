"""Announced versions: decimal integers, as a number or as the same digits in a text."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.capabilities.runs.wire import PolicyVersionRequest


@pytest.mark.parametrize(
    ("given", "version"), [(0, 0), (12, 12), ("12", 12), ("0", 0), (10**15 - 1, 10**15 - 1)], ids=repr
)
def test_a_decimal_integer_is_a_version(given: Any, version: int) -> None:
    assert PolicyVersionRequest.model_validate({"policy_version": given}).policy_version == version


@pytest.mark.parametrize(
    "given",
    [-1, True, 1.0, 10**15, "10" * 8, "", " 1", "1 ", "+1", "01", "1_0", "step-12", "1e3", "٣", None, [1], {}, "0x1"],
    ids=repr,
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="decimal integer"):
        PolicyVersionRequest.model_validate({"policy_version": given})


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        PolicyVersionRequest.model_validate({"policy_version": 1, "version": 1})
