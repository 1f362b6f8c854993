"""Generalized advantage estimation over a response that holds tool tokens.

Vanilla GAE steps through every token. The critic's masked loss never trains its values on tool tokens, but these values
reach the advantages of what was sampled before them, and a reward decays once per tool token. With `skip_tool`, GAE
steps from sampled token to sampled token instead. That recurrence would silently drop a reward that lies on a tool
token, so such a reward is first moved to the sampled token before it.

Formula: Schulman et al. 2016, arXiv:1506.02438, eq. 16. An example is in docs/training-maths.md.
"""

import numpy as np

from rolloutpool_rl.arrays import Array, add_at, as_flags, as_floats, check_vector, namespace
from rolloutpool_rl.errors import MaskInvalid

__all__ = ["gae", "rewards_on_actions"]


def gae(
    rewards: Array,
    values: Array,
    mask: Array | None = None,
    *,
    gamma: float,
    lam: float,
    skip_tool: bool = False,
) -> tuple[Array, Array]:
    """Computes advantages and returns of one response.

    A_t = δ_t + gamma·lam·A_{t+1}, δ_t = r_t + gamma·V_{t+1} - V_t, and nothing follows the last token.

    Args:
        rewards: [R].
        values: [R], the critic's value of each response token, tool tokens included.
        mask: [R], 1 where the policy sampled the token; needed for `skip_tool` only.
        gamma: Discount per step, 0 to 1.
        lam: GAE's λ, 0 to 1.
        skip_tool: Use the next sampled token as t + 1. At mask 0 the advantage is that of the next sampled token (0
            after the last one); no loss reads it.

    Returns:
        Advantages [R], and returns [R] (advantage + value).

    Raises:
        ShapeMismatch: Shapes differ, or are not [R].
        MaskInvalid: `skip_tool` without a mask, or without a sampled token that could have earned a reward.
    """
    rewards, values = as_floats(rewards=rewards, values=values)
    check_vector(rewards=rewards)
    if not skip_tool:
        advantages = _recurrence(rewards, values, gamma, lam)
        return advantages, advantages + values
    if mask is None:
        raise MaskInvalid("Skipping tool tokens needs the mask that says which they are.")
    flags = as_flags(mask, rewards)
    earned = rewards_on_actions(rewards, flags)
    compressed = _recurrence(earned[flags], values[flags], gamma, lam)
    # The number of sampled tokens before a position is the index of the first sampled token from that position on.
    # `1 *`, because torch does not subtract booleans.
    ahead = flags.cumsum(0) - 1 * flags
    xp = namespace(rewards)
    # The 0 at the end is for positions after the last sampled token.
    advantages = xp.concatenate([compressed, xp.zeros_like(compressed[:1])])[ahead]
    return advantages, advantages + values


def rewards_on_actions(rewards: Array, mask: Array) -> Array:
    """Moves each reward at mask 0 to the last sampled token before it; the sum stays the same.

    Trainers add a terminal reward at index -1, which is a tool token if the rollout ended on a tool result.

    Args:
        rewards: [R].
        mask: [R].

    Returns:
        Rewards [R].

    Raises:
        MaskInvalid: No token has mask 1, or none stands before a reward.
        ShapeMismatch: Shapes differ, or are not [R].
    """
    (rewards,) = as_floats(rewards=rewards)
    check_vector(rewards=rewards)
    flags = as_flags(mask, rewards)
    xp = namespace(rewards)
    (actions,) = np.nonzero(flags) if xp is np else xp.nonzero(flags, as_tuple=True)
    if actions.shape[0] == 0:
        raise MaskInvalid("No token has mask 1, so nothing that was sampled can have earned the reward.")
    if bool((rewards[: int(actions[0])] != 0).any()):
        raise MaskInvalid(f"There is a reward in front of the first sampled token, which is at {int(actions[0])}.")
    # Before the first sampled token this would be -1, the last one. Rewards there are 0, so index 0 does no harm.
    latest = xp.clip(flags.cumsum(0) - 1, 0, None)
    return add_at(rewards.shape[0], actions[latest], rewards)


def _recurrence(rewards: Array, values: Array, gamma: float, lam: float) -> Array:
    xp = namespace(rewards)
    # The response ends the episode: after the last token the value is 0, not the critic's.
    deltas = rewards + gamma * xp.concatenate([values[1:], xp.zeros_like(values[:1])]) - values
    # A_t = Σ_k (gamma·lam)^k δ_{t+k}, by doubling the window: log R vector steps instead of R scalar ones.
    advantages, step = deltas, 1
    while step < deltas.shape[0]:
        tail = xp.concatenate([advantages[step:], xp.zeros_like(advantages[:step])])
        advantages, step = advantages + (gamma * lam) ** step * tail, 2 * step
    return advantages
