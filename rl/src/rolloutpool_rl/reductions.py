"""Sums, means and whitening over response tokens, where only mask 1 counts.

A value at mask 0 is never read, not even if it is NaN. `x` [ΣR] holds the response tokens of all samples, one sample
after the other, as the losses of a packed batch are. Formulas are those of slime 0.3.1 (cp_utils, distributed_utils),
so that numbers can be compared.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

import numpy as np

from rolloutpool_rl.arrays import Array, as_flags, as_floats, check_vector, namespace
from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch

_EPSILON = 1e-8


def sum_of_sample_mean(
    x: Array, response_lengths: Sequence[int], loss_masks: Sequence[Array], denoms: Sequence[float] | None = None
) -> Array:
    """Sums the means of the samples, Σᵢ Σ(xᵢ·mᵢ) / max(Σmᵢ, 1): all samples have the same weight at any length.

    Args:
        x: [ΣR].
        response_lengths: [B], Rᵢ of each sample.
        loss_masks: B masks [Rᵢ].
        denoms: [B], replaces Σmᵢ. The samples of a forked rollout share the sum of their masks here, so that each
            rollout, and not each fork, has the same weight.

    Returns:
        A scalar.

    Raises:
        ShapeMismatch: Lengths, masks or denominators do not fit `x`.
        MaskInvalid: A mask holds other values than 0 and 1.
    """
    x, parts, flags = _split(x, response_lengths, loss_masks)
    if denoms is not None and len(denoms) != len(flags):
        raise ShapeMismatch(f"There are {len(denoms)} denominators for {len(flags)} samples.")
    counts = [max(denom, 1) for denom in denoms] if denoms is not None else [flag.sum().clip(1) for flag in flags]
    sums = [_masked(part, flag).sum() / count for part, flag, count in zip(parts, flags, counts, strict=True)]
    # Started with the sum of nothing in x's own type, so that an empty batch also gives an array or a tensor.
    return sum(sums, start=x[:0].sum())


def sum_of_rollout_mean(
    x: Array, response_lengths: Sequence[int], loss_masks: Sequence[Array], rollouts: Sequence[Hashable]
) -> Array:
    """Sums the means of the rollouts: all samples of a rollout share one mean, so that a fork adds no weight.

    Args:
        x: [ΣR].
        response_lengths: [B], Rᵢ of each sample.
        loss_masks: B masks [Rᵢ].
        rollouts: [B], which rollout each sample belongs to. All samples of a rollout must be in this call; where a
            rollout is spread over several, use `sum_of_sample_mean` with `PaddedBatch.rollout_mask_sums`.

    Returns:
        A scalar. Divide it by the number of rollouts.

    Raises:
        ShapeMismatch: Lengths, masks or rollouts do not fit.
        MaskInvalid: A mask holds other values than 0 and 1.
    """
    if len(rollouts) != len(loss_masks):
        raise ShapeMismatch(f"There are {len(rollouts)} names of rollouts for {len(loss_masks)} samples.")
    sums: dict[Hashable, int] = {}
    for rollout, mask in zip(rollouts, loss_masks, strict=True):
        sums[rollout] = sums.get(rollout, 0) + int(as_flags(mask, as_floats(mask=mask)[0]).sum())
    return sum_of_sample_mean(x, response_lengths, loss_masks, [sums[rollout] for rollout in rollouts])


def sum_of_token(x: Array, response_lengths: Sequence[int], loss_masks: Sequence[Array]) -> Array:
    """Sums the trained tokens, Σ x·m: all tokens have the same weight. Divide the sum by `token_count`.

    Args:
        x: [ΣR].
        response_lengths: [B], Rᵢ of each sample.
        loss_masks: B masks [Rᵢ].

    Returns:
        A scalar.

    Raises:
        ShapeMismatch: Lengths or masks do not fit `x`.
        MaskInvalid: A mask holds other values than 0 and 1.
    """
    x, parts, flags = _split(x, response_lengths, loss_masks)
    return sum((_masked(part, flag).sum() for part, flag in zip(parts, flags, strict=True)), start=x[:0].sum())


def token_count(loss_masks: Sequence[Array]) -> int:
    """Counts the trained tokens, Σᵢ max(Σmᵢ, 1) over B masks [Rᵢ]. A sample of zeros counts 1, as in slime.

    Raises:
        MaskInvalid: A mask holds other values than 0 and 1.
    """
    return sum(max(int(as_flags(mask, as_floats(mask=mask)[0]).sum()), 1) for mask in loss_masks)


def token_mean(x: Array, mask: Array) -> Array:
    """Computes the mean of the trained tokens, Σ x·m / max(Σm, 1).

    Args:
        x: Of any shape.
        mask: Of the same shape.

    Returns:
        A scalar.

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: The mask holds other values than 0 and 1.
    """
    (x,) = as_floats(x=x)
    flags = as_flags(mask, x)
    return _masked(x, flags).sum() / flags.sum().clip(1)


def masked_whiten(values: Array, mask: Array, *, shift_mean: bool = True) -> Array:
    """Whitens values: mean 0 and variance 1 over the trained tokens, (v - μ) / sqrt(σ² + 1e-8).

    σ² has Bessel's correction n/(n - 1) from two tokens on. Positions with mask 0 are transformed in the same way, but
    do not count in μ and σ².

    Args:
        values: [N], of all samples at once.
        mask: [N].
        shift_mean: False adds μ again.

    Returns:
        [N].

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: No position has mask 1, or the mask holds other values than 0 and 1.
    """
    return distributed_whiten(values, mask, lambda sums: sums, shift_mean=shift_mean)


def distributed_whiten(
    values: Array, mask: Array, reduce: Callable[[Array], Array], *, shift_mean: bool = True
) -> Array:
    """Whitens as `masked_whiten` does, with mean and variance over the tokens of all processes.

    `reduce` is called twice, on every process, also on one whose mask is 0 everywhere. With torch.distributed it is:

        def reduce(sums):
            torch.distributed.all_reduce(sums)
            return sums

    Args:
        values: [N], those of this process; N may differ between processes.
        mask: [N].
        reduce: Adds up an array [2] over all processes. It may change the array.
        shift_mean: False adds μ again.

    Returns:
        [N].

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: No position of any process has mask 1, or the mask holds other values than 0 and 1.
    """
    (values,) = as_floats(values=values)
    flags = as_flags(mask, values)
    xp = namespace(values)
    # In float64: bfloat16 counts to 256 only, and float32 to 16.8 million.
    exact = values if xp is np else values.to(xp.float64)
    trained = _masked(xp.ones_like(exact), flags).sum()
    total, n = reduce(xp.stack([_masked(exact, flags).sum(), trained]))
    count = int(n)
    if count == 0:
        raise MaskInvalid("There is nothing to whiten: the mask is 0 everywhere.")
    mean = total / count
    # The second pass takes squares of differences: a mean of squares less a squared mean loses its digits where the
    # mean is far from 0. Two entries again, so that every call of `reduce` has one shape.
    squares, _ = reduce(xp.stack([(_masked(exact - mean, flags) ** 2).sum(), trained]))
    # Divided by n - 1; a single token has no variance, and must not divide by 0.
    variance = squares / max(count - 1, 1)
    whitened = (exact - mean) / xp.sqrt(variance + _EPSILON)
    whitened = whitened if shift_mean else whitened + mean
    return whitened if xp is np else whitened.to(values.dtype)


def _masked(values: Array, flags: Array) -> Array:
    # Not a product: 0 times NaN is NaN, and tool tokens may hold anything.
    return namespace(values).where(flags, values, 0.0)


def _split(x: Array, lengths: Sequence[int], masks: Sequence[Array]) -> tuple[Array, list[Array], list[Array]]:
    (x,) = as_floats(x=x)
    check_vector(x=x)
    lengths = [int(length) for length in lengths]
    if len(masks) != len(lengths) or sum(lengths) != x.shape[0] or min(lengths, default=0) < 0:
        raise ShapeMismatch(
            f"x has {x.shape[0]} tokens for {len(lengths)} samples with {sum(lengths)} tokens and {len(masks)} masks."
        )
    parts = [x[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]
    return x, parts, [as_flags(mask, part) for mask, part in zip(masks, parts, strict=True)]
