"""Whether a result's tokens are the trainer's own: ids, masks and log-probabilities, one by one.

The trainer's endpoint keeps a ledger of what it sampled; the pool's result comes from another one. A mismatch means
that one of the two is wrong, and that nothing may be trained on it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Protocol

from rolloutpool_common.protocol.result import RolloutResult

__all__ = ["TokenSample", "check_masks"]


class TokenSample(Protocol):
    """One training sample, the pool's or the trainer's."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def response_ids(self) -> Sequence[int]: ...
    @property
    def response_mask(self) -> Sequence[int]: ...
    @property
    def response_logprobs(self) -> Sequence[float]: ...


def check_masks(result: RolloutResult, own: Iterable[TokenSample]) -> tuple[int, int]:
    """Compare a result with what the trainer's session has of the same rollout.

    Returns:
        How many tokens were compared, and at how many places anything differs; a token that one side lacks differs.
    """
    compared = differing = 0
    for theirs, ours in zip_longest(result.samples, own):
        for left, right in zip_longest(_tokens(theirs), _tokens(ours)):
            compared += 1
            differing += left != right
    return compared, differing


def _tokens(sample: TokenSample | None) -> Iterator[tuple[int, int, float]]:
    if sample is not None:
        yield from ((token, 0, 0.0) for token in sample.prompt_ids)
        # Lists of unequal length are what this is to find, not what it may fail on.
        yield from zip_longest(sample.response_ids, sample.response_mask, sample.response_logprobs)
