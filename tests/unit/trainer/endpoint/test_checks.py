"""The comparison finds every kind of difference, and counts it."""

from typing import Any

from tests.support.api_documents import result

from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_trainer.endpoint.checks import check_masks

SAMPLE: dict[str, Any] = {
    "prompt_ids": [1, 2],
    "response_ids": [3, 4, 5],
    "response_mask": [1, 0, 1],
    "response_logprobs": [-0.5, 0.0, -0.25],
    "segments": [],
}


def checked(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> tuple[int, int]:
    return check_masks(RolloutResult.model_validate(result(0, samples=theirs)), [Sample(**sample) for sample in ours])


def test_missing_tokens_and_samples_count() -> None:
    short = {key: value[:-1] for key, value in SAMPLE.items()} | {"prompt_ids": [1, 2]}
    assert checked([short], [SAMPLE]) == (5, 1)
    assert checked([SAMPLE], [SAMPLE, SAMPLE]) == (10, 5)
    assert checked([], [SAMPLE]) == (5, 5)


def test_lists_of_unequal_length_count() -> None:
    assert checked([SAMPLE | {"response_mask": [1, 0]}], [SAMPLE]) == (5, 1)
