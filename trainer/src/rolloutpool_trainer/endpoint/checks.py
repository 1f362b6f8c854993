"""Compares a result of the pool with the trainer's own record: ids, masks and log-probabilities, one by one.

The endpoint and the pool keep two independent ledgers of the same rollout. If they differ, one of them is wrong, and
the rollout must not be trained on.
"""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from rolloutpool_common.protocol.result import RolloutResult, Sample


def check_masks(result: RolloutResult, own: Iterable[Sample]) -> tuple[int, int]:
    """Compares a result with the samples of the trainer's session of the same rollout.

    Args:
        result: From the pool.
        own: The session's `samples`.

    Returns:
        How many tokens were compared, and at how many places anything differs. A token that one side lacks differs.
    """
    compared = differing = 0
    for theirs, ours in zip_longest(result.samples, own):
        for left, right in zip_longest(_tokens(theirs), _tokens(ours)):
            compared += 1
            differing += left != right
    return compared, differing


def _tokens(sample: Sample | None) -> Iterator[tuple[int, int, float]]:
    if sample is not None:
        yield from ((token, 0, 0.0) for token in sample.prompt_ids)
        # Lists of unequal length are a difference to count, so they must not raise an error here.
        yield from zip_longest(sample.response_ids, sample.response_mask, sample.response_logprobs)
