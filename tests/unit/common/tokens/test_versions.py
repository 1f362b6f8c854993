"""Versions as numbers: only what is known is said."""

from collections.abc import Sequence

import pytest

from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.versions import version_bounds


@pytest.mark.parametrize(
    ("versions", "bounds"),
    [
        ([], (None, None)),
        (["12"], (12, 12)),
        (["13", "9", "12"], (9, 13)),
        (["0012"], (12, 12)),
        (["12", "<=13"], (None, 13)),
        (["<=13"], (None, 13)),
        (["<=9", "12"], (None, 12)),
        (["12", None], (None, None)),
        ([None], (None, None)),
        (["step-12", "12"], (None, None)),
        (["default"], (None, None)),
        (["<=default"], (None, None)),
        (["-1"], (None, None)),
        (["1.5"], (None, None)),
        (["١٢"], (None, None)),
        ([""], (None, None)),
        (["<="], (None, None)),
        (["9" * 18], (10**18 - 1, 10**18 - 1)),
        (["9" * 19], (None, None)),
    ],
)
def test_bounds(versions: Sequence[str | None], bounds: tuple[int | None, int | None]) -> None:
    assert version_bounds(versions) == bounds


def test_a_sample_has_those_of_its_sampled_ids() -> None:
    ledger = TokenLedger()
    ledger.seed([1, 2])
    ledger.append_sampled([5], [-0.5], turn=1, policy_version="12")
    ledger.append_sampled([6], [-0.5], turn=1, policy_version="13")
    ledger.append_glue([7], turn=1)
    ledger.append_sampled([8], [-0.5], turn=2, policy_version="13")
    (sample,) = ledger.samples()
    assert (sample.version_min, sample.version_max) == (12, 13)
