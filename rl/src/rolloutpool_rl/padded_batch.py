"""Results as one padded numpy batch: prompts padded on the left, responses on the right.

All responses therefore start in the same column, and `logits[:, response_slice(P + R, R)]` are theirs. Each row is one
sample; `rollout` says which rows belong to one rollout.

Nothing is truncated, and nothing about a single rollout raises an error: what can't be trained is left out and counted
in `dropped`. In distributed training an error on one process would leave the others waiting. The reasons are:

- `infra:network_error` and the like: the rollout failed, and not by the policy. It is no sample with reward 0.
- `broken`: the lists of a sample do not fit together.
- `untrained`: nothing of a sample has mask 1.
- `prompt_too_long`, `response_too_long`: a sample does not fit. It is not cut, because that would be silent.
- `no_reward`, `no_advantage`: rewards or advantages were given, but this rollout has None.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutpool_common.outcomes import FailureKind
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.tokens.versions import version_number
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.training_rows import Reward, trainable

_log = logging.getLogger(__name__)

_Row = tuple[int, Sample, float, float]
"""A sample that is trained: index of its rollout, the sample, its reward and its advantage."""


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
    advantages: npt.NDArray[np.float32]
    """[B, R]; the rollout's advantage where the mask is 1, else 0.0. All 0.0 if none were given."""
    versions: npt.NDArray[np.int64]
    """[B, R]; `version_number` of the policy that sampled the token; -1 where the mask is 0 or it is not known."""
    turns: npt.NDArray[np.int64]
    """[B, R]; the turn, from 1, that sampled the token or after which it was appended; 0 at padding."""
    rollout: npt.NDArray[np.int64]
    """[B]; index of the row's rollout in what was exported."""
    rollout_mask_sums: npt.NDArray[np.int64]
    """[B]; trained tokens of the row's whole rollout: `denoms` of `reductions.sum_of_sample_mean`."""
    dropped: dict[str, int] = field(default_factory=dict)
    """How many rollouts or samples were left out, by reason."""

    def __len__(self) -> int:
        return len(self.rollout)

    def with_turn_advantages(self, advantages: Sequence[npt.ArrayLike]) -> "PaddedBatch":
        """Puts the advantage of each turn on the tokens that it sampled.

        Args:
            advantages: For each rollout that was given to `padded_batch`, [T] of its turns, as `turn_advantages` makes
                them.

        Returns:
            The same batch with other `advantages` [B, R].

        Raises:
            ExportRefused: A rollout of the batch has no advantages, or has more turns than advantages.
        """
        gains = np.zeros_like(self.advantages)
        for row, rollout in enumerate(self.rollout.tolist()):
            # Turns count from 1; 0 is padding.
            own = np.append(0.0, np.asarray(advantages[rollout])) if rollout < len(advantages) else np.zeros(1)
            if (turns := int(self.turns[row].max(initial=0))) >= len(own):
                raise ExportRefused(f"Rollout {rollout} of the batch has {turns} turns, but {len(own) - 1} advantages.")
            gains[row] = np.where(self.response_mask[row] == 1, own[self.turns[row]], 0.0)
        return replace(self, advantages=gains)

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Copies the arrays to torch tensors of the same types, by name.

        Args:
            device: Of the tensors; None is the CPU.
        """
        import torch

        arrays = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "dropped"}
        # `tensor` copies: a view could change under the optimiser's feet, and prompts and input_ids share memory.
        return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


def padded_batch(
    results: Sequence[RolloutResult],
    rewards: Sequence[Reward] | None = None,
    *,
    pad_id: int,
    advantages: Sequence[Reward] | None = None,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> PaddedBatch:
    """Pads all trainable samples of the rollouts into one batch, in order.

    Args:
        results: Of the rollouts.
        rewards: One entry for each rollout; without it all scores are 0.0.
        pad_id: The id in the padding.
        advantages: One entry for each rollout, as `advantages.group_advantages` gives them.
        prompt_length: P; the longest prompt by default. Longer samples are dropped.
        response_length: R; the longest response by default. Longer samples are dropped.

    Returns:
        The batch, with one row per trainable sample; with no rows if nothing can be trained.

    Raises:
        ExportRefused: There is another number of rewards or advantages than of rollouts or samples.
    """
    dropped: Counter[str] = Counter()
    limits = (prompt_length, response_length)
    rows = list(_rows(results, _given("rewards", rewards, results), _given("advantages", advantages, results), dropped))
    rows = [row for row in rows if _fits(row[1], limits, dropped)]
    if results and not rows:
        # A model that is given no rows says something else.
        _log.warning("none of %d rollouts has a sample to train on: %s", len(results), dict(dropped))
    width_p = max((len(row[1].prompt_ids) for row in rows), default=0) if prompt_length is None else prompt_length
    width_r = max((len(row[1].response_ids) for row in rows), default=0) if response_length is None else response_length
    batch = _blank(rows, width_p, width_r, pad_id)
    for number, row in enumerate(rows):
        _write(batch, number, row)
    batch.versions[batch.response_mask == 0] = -1
    # Counting attended tokens gives -1 in the padding on the left, and stands still in that on the right.
    batch.position_ids[:] = np.maximum(batch.attention_mask.cumsum(1) - 1, 0)
    sums = np.bincount(batch.rollout, weights=batch.response_mask.sum(1)).astype(np.int64)
    return replace(batch, rollout_mask_sums=sums[batch.rollout], dropped=dict(dropped))


def _blank(rows: Sequence[_Row], width_p: int, width_r: int, pad_id: int) -> PaddedBatch:
    """Makes the batch of these rows with nothing but padding."""
    ids = np.full((len(rows), width_p + width_r), pad_id, dtype=np.int64)
    mask, turns = (np.zeros((len(rows), width_r), dtype=np.int64) for _ in range(2))
    logprobs, scores, gains = (np.zeros(mask.shape, dtype=np.float32) for _ in range(3))
    return PaddedBatch(
        prompts=ids[:, :width_p],
        responses=ids[:, width_p:],
        input_ids=ids,
        attention_mask=np.zeros_like(ids),
        position_ids=np.zeros_like(ids),
        response_mask=mask,
        rollout_log_probs=logprobs,
        rm_scores=scores,
        advantages=gains,
        versions=np.full(mask.shape, -1, dtype=np.int64),
        turns=turns,
        rollout=np.array([index for index, *_ in rows], dtype=np.int64),
        rollout_mask_sums=np.zeros(len(rows), dtype=np.int64),
    )


def _write(batch: PaddedBatch, number: int, row: _Row) -> None:
    """Writes a sample into its row of the batch."""
    _, sample, reward, advantage = row
    width_p, size = batch.prompts.shape[1], len(sample.response_ids)
    start = width_p - len(sample.prompt_ids)
    batch.input_ids[number, start:width_p] = sample.prompt_ids
    batch.input_ids[number, width_p : width_p + size] = sample.response_ids
    batch.attention_mask[number, start : width_p + size] = 1
    mask = batch.response_mask[number]
    mask[:size] = sample.response_mask
    batch.rollout_log_probs[number, :size] = sample.response_logprobs
    # `trainable` leaves out samples without a sampled token, so there is a last one.
    batch.rm_scores[number, np.flatnonzero(mask)[-1]] = reward
    # Not a product: an advantage that is not finite must stay where it is seen, on trained tokens.
    batch.advantages[number, mask == 1] = advantage
    for segment in sample.segments:
        part = slice(segment.start, segment.start + segment.n)
        batch.turns[number, part] = segment.turn
        batch.versions[number, part] = version_number(segment.policy_version)


def _given(what: str, values: Sequence[Reward] | None, results: Sequence[RolloutResult]) -> Sequence[Reward]:
    if values is None:
        return [0.0] * len(results)
    if len(values) != len(results):
        raise ExportRefused(f"There are {len(values)} {what} for {len(results)} rollouts.")
    return values


def _rows(
    results: Sequence[RolloutResult],
    rewards: Sequence[Reward],
    advantages: Sequence[Reward],
    dropped: Counter[str],
) -> Iterator[_Row]:
    for index, (result, reward, advantage) in enumerate(zip(results, rewards, advantages, strict=True)):
        if result.failure is not None and result.failure.kind is not FailureKind.POLICY:
            dropped[f"{result.failure.kind}:{result.failure.category}"] += 1
            continue
        for what, values in (("rewards", reward), ("advantages", advantage)):
            if isinstance(values, Sequence) and len(values) != len(result.samples):
                raise ExportRefused(
                    f"Rollout {result.rollout_id} has {len(result.samples)} samples but {len(values)} {what} are given."
                )
        gains = list(advantage) if isinstance(advantage, Sequence) else [advantage] * len(result.samples)
        try:
            kept = list(trainable(result, reward))
        except ExportRefused:
            dropped["broken"] += 1
            continue
        # A rollout that ended before its first turn has no sample, and counts once.
        if untrained := max(len(result.samples), 1) - len(kept):
            dropped["untrained"] += untrained
        for place, sample, own in kept:
            if own is None or (gain := gains[place]) is None:
                dropped["no_reward" if own is None else "no_advantage"] += 1
            else:
                yield index, sample, own, gain


def _fits(sample: Sample, limits: tuple[int | None, int | None], dropped: Counter[str]) -> bool:
    for reason, ids, limit in zip(
        ("prompt_too_long", "response_too_long"), (sample.prompt_ids, sample.response_ids), limits, strict=True
    ):
        if limit is not None and len(ids) > limit:
            dropped[reason] += 1
            return False
    return True
