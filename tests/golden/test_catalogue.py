"""The drift catalogue on further tokenizers: deltas written by hand, trainers played by transformers."""

import pytest
from tests.golden.catalogue import CATALOGUE, Drift, built
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering.checks.conformance import case_faults

pytestmark = pytest.mark.real_tokenizer


@pytest.mark.parametrize("drift", CATALOGUE, ids=lambda drift: f"{drift.name}-{drift.tokenizer}")
def test_case(drift: Drift) -> None:
    tokenizer = real_tokenizer(drift.tokenizer)
    assert case_faults(built(drift), tokenizer) == []
