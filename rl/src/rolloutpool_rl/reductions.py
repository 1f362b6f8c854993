"""Sums, means and whitening over response tokens, where only mask 1 counts.

A value at mask 0 is never read, not even if it is NaN. `x` [ΣR] holds the response tokens of all samples, one sample
after the other, as the losses of a packed batch are. Formulas are those of slime 0.3.1 (cp_utils, distributed_utils),
so that numbers can be compared.
"""

from collections.abc import Sequence
from itertools import accumulate

from rolloutpool_rl.arrays import Array, as_flags, as_floats, check_vector, namespace
from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch

__all__ = ["masked_whiten", "sum_of_sample_mean", "sum_of_token", "token_count", "token_mean"]

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
    (values,) = as_floats(values=values)
    flags = as_flags(mask, values)
    n = int(flags.sum())
    if n == 0:
        raise MaskInvalid("There is nothing to whiten: the mask is 0 everywhere.")
    mean = _masked(values, flags).sum() / n
    # Divided by n - 1; a single token has no variance, and must not divide by 0.
    variance = (_masked(values - mean, flags) ** 2).sum() / max(n - 1, 1)
    whitened = (values - mean) / namespace(values).sqrt(variance + _EPSILON)
    return whitened if shift_mean else whitened + mean


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
