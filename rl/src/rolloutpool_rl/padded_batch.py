"""Results as one padded numpy batch: prompts padded on the left, responses on the right.

All responses therefore start in the same column, and `logits[:, response_slice(P + R, R)]` are theirs. Each row is one
sample; `rollout` says which rows belong to one rollout. Nothing is truncated: a sample that does not fit is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.export import Reward, trainable

__all__ = ["PaddedBatch", "padded_batch"]


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch:
    """B samples, P columns of prompt and R of response; names and types as in verl 0.9.1."""

    prompts: npt.NDArray[np.int64]
    """[B, P]."""
    responses: npt.NDArray[np.int64]
    """[B, R]."""
    input_ids: npt.NDArray[np.int64]
    """[B, P + R]."""
    attention_mask: npt.NDArray[np.int64]
    """[B, P + R]; 0 at padding."""
    position_ids: npt.NDArray[np.int64]
    """[B, P + R]; from 0 at the prompt's first token; padding on the left has 0, on the right it holds the last."""
    response_mask: npt.NDArray[np.int64]
    """[B, R]; 1 where the policy sampled the token, 0 at tool tokens and padding."""
    rollout_log_probs: npt.NDArray[np.float32]
    """[B, R]; 0.0 where the mask is 0."""
    rm_scores: npt.NDArray[np.float32]
    """[B, R]; the reward at the last token with mask 1, where GAE that skips tool tokens sees it."""
    rollout: npt.NDArray[np.int64]
    """[B]; index of the row's rollout in what was exported."""
    rollout_mask_sums: npt.NDArray[np.int64]
    """[B]; trained tokens of the row's whole rollout: `denoms` of `reductions.sum_of_sample_mean`."""


def padded_batch(
    results: Sequence[RolloutResult],
    rewards: Sequence[Reward] | None = None,
    *,
    pad_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> PaddedBatch:
    """Pads all trainable samples of the rollouts into one batch, in order.

    Args:
        results: Of the rollouts.
        rewards: One entry for each rollout; without it all scores are 0.0.
        pad_id: The id in the padding.
        prompt_length: P; the longest prompt by default.
        response_length: R; the longest response by default.

    Returns:
        The batch, with one row per trainable sample.

    Raises:
        ExportRefused: There is nothing to train, a sample is too long, a reward is missing, or `trainable` refuses.
    """
    given: Sequence[Reward] = [0.0] * len(results) if rewards is None else rewards
    if len(given) != len(results):
        raise ExportRefused(f"There are {len(given)} rewards for {len(results)} rollouts.")
    rows = [
        (index, sample, reward)
        for index, (result, own) in enumerate(zip(results, given, strict=True))
        for _, sample, reward in trainable(result, own)
    ]
    if not rows:
        raise ExportRefused("No sample has a token to train.")
    width_p = _width("prompt", [len(sample.prompt_ids) for _, sample, _ in rows], prompt_length)
    width_r = _width("response", [len(sample.response_ids) for _, sample, _ in rows], response_length)
    ids = np.full((len(rows), width_p + width_r), pad_id, dtype=np.int64)
    attention = np.zeros_like(ids)
    mask = np.zeros((len(rows), width_r), dtype=np.int64)
    logprobs, scores = (np.zeros(mask.shape, dtype=np.float32) for _ in range(2))
    rollout = np.array([index for index, _, _ in rows], dtype=np.int64)
    for row, (index, sample, reward) in enumerate(rows):
        if reward is None:
            raise ExportRefused(f"Rollout {results[index].rollout_id} has no reward.")
        start, size = width_p - len(sample.prompt_ids), len(sample.response_ids)
        ids[row, start:width_p] = sample.prompt_ids
        ids[row, width_p : width_p + size] = sample.response_ids
        attention[row, start : width_p + size] = 1
        mask[row, :size] = sample.response_mask
        logprobs[row, :size] = sample.response_logprobs
        # `trainable` leaves out samples without a sampled token, so there is a last one.
        scores[row, np.flatnonzero(mask[row])[-1]] = reward
    sums = np.bincount(rollout, weights=mask.sum(1)).astype(np.int64)
    return PaddedBatch(
        prompts=ids[:, :width_p],
        responses=ids[:, width_p:],
        input_ids=ids,
        attention_mask=attention,
        # Counting attended tokens gives -1 in the padding on the left, and stands still in that on the right.
        position_ids=np.maximum(attention.cumsum(1) - 1, 0),
        response_mask=mask,
        rollout_log_probs=logprobs,
        rm_scores=scores,
        rollout=rollout,
        rollout_mask_sums=sums[rollout],
    )


def _width(what: str, lengths: Sequence[int], limit: int | None) -> int:
    longest = max(lengths)
    if limit is not None and longest > limit:
        raise ExportRefused(f"A {what} of {longest} tokens does not fit into {limit}, and cutting it would be silent.")
    return longest if limit is None else limit
