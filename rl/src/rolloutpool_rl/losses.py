"""PPO's losses per response token, where only mask 1 counts.

At mask 0 a result is 0 and has no gradient: masked inputs are replaced before anything is computed from them, so that
not even an infinite log-probability of a tool token gets through. Logarithms are natural. Reduce the per-token results
with `rolloutpool_rl.reductions`; `token_mean(result.clipped, mask)` is the clip fraction.

Formulas: PPO is Schulman et al. 2017, arXiv:1707.06347, eq. 7; KL estimators are those of
joschu.net/blog/kl-approx.html.
"""

from dataclasses import dataclass
from typing import Literal

from rolloutpool_rl.arrays import Array, as_flags, as_floats, namespace
from rolloutpool_rl.errors import ShapeMismatch


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLoss:
    """The clipped objective of each token."""

    loss: Array
    """[R]; minimise it."""
    clipped: Array
    """[R]; 1.0 where the clipped term is the larger one, which gives the token no gradient."""
    ppo_kl: Array
    """[R]; log π_old - log π: the k1 estimate of how far the policy has moved since it sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueLoss:
    """The clipped squared error of each token."""

    loss: Array
    """[R]; without a factor ½."""
    clipped: Array
    """[R]; 1.0 where the clipped error is the larger one."""


def policy_loss(
    log_probs: Array,
    old_log_probs: Array,
    advantages: Array,
    mask: Array,
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
) -> PolicyLoss:
    """Computes PPO's clipped loss, max(-rA, -clamp(r, 1 - clip, 1 + clip_high)·A) with r = π / π_old.

    Args:
        log_probs: [R], of the sampled tokens under the policy in training.
        old_log_probs: [R], of the same tokens under the policy that sampled them. Entries at mask 0 are not read.
        advantages: [R], from `advantages.gae` or any other estimator, detached from the policy.
        mask: [R], 0 or 1.
        clip: How far r may fall below 1.
        clip_high: How far r may rise above 1; `clip` by default.

    Returns:
        Loss, clip flags and drift of each token, [R] each.

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: The mask holds other values.
    """
    floats = as_floats(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    flags = as_flags(mask, floats[0])
    xp = namespace(floats[0])
    # Replaced first and not multiplied by 0 at the end: inf times 0 is NaN, in the result and in its gradient.
    new, old, gain = (xp.where(flags, value, 0.0) for value in floats)
    ppo_kl = old - new
    ratio = xp.exp(-ppo_kl)
    plain = -ratio * gain
    limited = -xp.clip(ratio, 1 - clip, 1 + (clip if clip_high is None else clip_high)) * gain
    return PolicyLoss(xp.maximum(plain, limited), xp.where(limited > plain, xp.ones_like(gain), 0.0), ppo_kl)


def value_loss(values: Array, old_values: Array, returns: Array, mask: Array, *, clip: float = 0.2) -> ValueLoss:
    """Computes the clipped value loss, max((V - R)², (V_old + clamp(V - V_old, ±clip) - R)²).

    Some trainers halve it; this function, like slime 0.3.1, does not.

    Args:
        values: [R], of the critic in training.
        old_values: [R], of the critic when the advantages were computed.
        returns: [R], from `advantages.gae`.
        mask: [R], 0 or 1.
        clip: How far a value may move without being clipped.

    Returns:
        Loss and clip flags of each token, [R] each.

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: The mask holds other values.
    """
    floats = as_floats(values=values, old_values=old_values, returns=returns)
    flags = as_flags(mask, floats[0])
    xp = namespace(floats[0])
    new, old, target = (xp.where(flags, value, 0.0) for value in floats)
    plain = (new - target) ** 2
    limited = (old + xp.clip(new - old, -clip, clip) - target) ** 2
    return ValueLoss(xp.maximum(plain, limited), xp.where(limited > plain, xp.ones_like(plain), 0.0))


def kl(log_probs: Array, reference_log_probs: Array, mask: Array, *, estimator: Literal["k1", "k2", "k3"]) -> Array:
    """Estimates KL(π ‖ π_ref) at each sampled token.

    With d = log π - log π_ref: k1 = d (unbiased, may be negative), k2 = d²/2 (biased, its gradient is that of the
    KL), k3 = e^-d - 1 + d (unbiased, never negative).

    Args:
        log_probs: [R], of the policy in training.
        reference_log_probs: [R], of the reference policy.
        mask: [R], 0 or 1.
        estimator: One of the three.

    Returns:
        [R], in nats.

    Raises:
        ShapeMismatch: Shapes differ.
        MaskInvalid: The mask holds other values.
        ValueError: There is no such estimator.
    """
    floats = as_floats(log_probs=log_probs, reference_log_probs=reference_log_probs)
    flags = as_flags(mask, floats[0])
    xp = namespace(floats[0])
    new, reference = (xp.where(flags, value, 0.0) for value in floats)
    difference = new - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "k3":
        # `expm1` stays exact where the policies hardly differ; exp(-d) - 1 would lose its digits there.
        return xp.expm1(-difference) + difference
    raise ValueError(f"There is no KL estimator {estimator!r}; use k1, k2 or k3.")


def entropy(logits: Array, mask: Array) -> Array:
    """Computes the entropy of the next-token distribution at each position, -Σ p·log p.

    Args:
        logits: [R, V]. A logit of -inf (a forbidden token) has probability 0 and adds nothing.
        mask: [R], 0 or 1.

    Returns:
        [R], in nats; 0 at mask 0.

    Raises:
        ShapeMismatch: Logits are not [R, V], or the mask is not [R].
        MaskInvalid: The mask holds other values.
    """
    (logits,) = as_floats(logits=logits)
    if len(logits.shape) != 2:
        raise ShapeMismatch(f"Logits must be [R, V]; they are {list(logits.shape)}.")
    flags = as_flags(mask, logits[:, 0])
    xp = namespace(logits)
    kept = xp.where(flags[:, None], logits, 0.0)
    # Without its largest logit no exponential overflows; the entropy does not change by that.
    shifted = kept - xp.amax(kept, axis=-1, keepdims=True)
    weights = xp.exp(shifted)
    total = weights.sum(-1)
    # A forbidden token has shifted = -inf and weight 0, whose product would be NaN.
    spread = (weights * xp.where(weights > 0, shifted, 0.0)).sum(-1)
    return xp.where(flags, xp.log(total) - spread / total, 0.0)
