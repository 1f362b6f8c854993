"""Advantages: relative to the rollout's group, or by generalized advantage estimation (GAE) over tool tokens.

`group_advantages` compares each rollout with those of the same prompt, as GRPO and RLOO do, and needs no critic.
`turn_advantages` does so with a reward for each turn.

GAE needs one. Vanilla GAE steps through every token. The critic's masked loss never trains its values on tool tokens,
but these values reach the advantages of what was sampled before them, and a reward decays once per tool token. With
`skip_tool`, GAE steps from sampled token to sampled token instead. That recurrence would silently drop a reward that
lies on a tool token, so such a reward is first moved to the sampled token before it.

Formulas: GAE is Schulman et al. 2016, arXiv:1506.02438, eq. 16; GRPO is Shao et al. 2024, arXiv:2402.03300; RLOO is
Ahmadian et al. 2024, arXiv:2402.14740. An example is in docs/training.md.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rolloutpool_rl.arrays import Array, add_at, as_flags, as_floats, check_vector, namespace
from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch

_EPSILON = 1e-6


def group_advantages(
    rewards: Array,
    groups: Sequence[Hashable],
    *,
    std: Literal["group", "batch"] | None = "group",
    leave_one_out: bool = False,
) -> Array:
    """Compares each rollout's reward with those of its group.

    GRPO is the default, `std=None` is Dr. GRPO, and `std=None, leave_one_out=True` is RLOO. A rollout counts once,
    however many samples it forked into: give each of its samples this advantage.

    Args:
        rewards: [N], one per rollout.
        groups: [N], the group of each. `result.group` may be None, which would make all of them one group.
        std: What the difference is divided by: the standard deviation of the group, or of all rewards; both with
            Bessel's correction, plus 1e-6. None divides by nothing.
        leave_one_out: Compare with the mean of the *others* in the group, so that no reward is part of its own
            baseline.

    Returns:
        [N]. A rollout that is alone in its group has nothing to be compared with: 0.

    Raises:
        ShapeMismatch: Rewards are not [N], or there is another number of groups.
        ValueError: There is no such `std`.
    """
    (rewards,) = as_floats(rewards=rewards)
    check_vector(rewards=rewards)
    if len(groups) != rewards.shape[0]:
        raise ShapeMismatch(f"There are {len(groups)} groups for {rewards.shape[0]} rewards.")
    if std not in ("group", "batch", None):
        raise ValueError(f"There is no std {std!r}; use group, batch or None.")
    xp, of_group = namespace(rewards), _sums_of(groups, rewards)
    sizes = of_group(xp.ones_like(rewards))
    others = xp.clip(sizes - 1, 1, None)
    difference = rewards - of_group(rewards) / sizes
    # r - (Σ - r) / (n - 1) is n / (n - 1) times the difference to the group's mean.
    gain = difference * sizes / others if leave_one_out else difference
    if std == "group":
        gain = gain / (xp.sqrt(of_group(difference**2) / others) + _EPSILON)
    elif std == "batch":
        spread = rewards - rewards.sum() / max(rewards.shape[0], 1)
        gain = gain / (xp.sqrt((spread**2).sum() / max(rewards.shape[0] - 1, 1)) + _EPSILON)
    return xp.where(sizes > 1, gain, 0.0)


def _sums_of(groups: Sequence[Hashable], like: Array) -> Callable[[Array], Array]:
    """Makes the function that gives each rollout the sum over its group."""
    xp = namespace(like)
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(group, len(numbers)) for group in groups]
    place = np.asarray(index, dtype=np.int64) if xp is np else xp.tensor(index, device=like.device, dtype=xp.int64)
    return lambda values: add_at(len(numbers), place, values)[place]


def turn_advantages(
    rewards: Sequence[Sequence[float | None]],
    groups: Sequence[Hashable],
    *,
    gamma: float = 1.0,
    std: Literal["group"] | None = "group",
) -> list[npt.NDArray[np.float64]]:
    """Gives each turn of each rollout its own advantage, from a reward for each turn.

    This is GRPO with process supervision (arXiv:2402.03300, section 4.1.3), with a discount: the rewards of all turns
    of a group are normalised together, r̃ = (r - mean) / std, and a turn's advantage is the sum of those from it on,
    A_t = Σ_{k ≥ t} gamma^(k - t) · r̃_k. Earlier rewards are no merit of a turn, so they do not count.

    Args:
        rewards: N lists of [T], T turns of each rollout; `turn_rewards` reads them from a result. None is no reward: it
            adds nothing, and is part of no mean.
        groups: [N], the group of each rollout.
        gamma: Discount per turn, 0 to 1; the paper has none.
        std: Divide by the standard deviation of the group's rewards, with Bessel's correction, plus 1e-6; None divides
            by nothing.

    Returns:
        N arrays [T], for `PaddedBatch.with_turn_advantages`. A rollout that is alone in its group has zeros.

    Raises:
        ShapeMismatch: There is another number of groups than of rollouts.
        ValueError: There is no such `std`, or gamma is not between 0 and 1.
    """
    if len(groups) != len(rewards):
        raise ShapeMismatch(f"There are {len(groups)} groups for {len(rewards)} rollouts.")
    if std not in ("group", None):
        raise ValueError(f"There is no std {std!r}; use group or None.")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be between 0 and 1; it is {gamma:g}.")
    together: dict[Hashable, list[float]] = {}
    for own, group in zip(rewards, groups, strict=True):
        together.setdefault(group, []).extend(reward for reward in own if reward is not None)
    sizes = Counter(groups)
    found = []
    for own, group in zip(rewards, groups, strict=True):
        known, gains, ahead = together[group], np.zeros(len(own)), 0.0
        mean = float(np.mean(known)) if known else 0.0
        spread = float(np.std(known, ddof=1)) + _EPSILON if std and len(known) > 1 else 1.0
        for turn in reversed(range(len(own) if sizes[group] > 1 else 0)):
            reward = own[turn]
            gains[turn] = ahead = gamma * ahead + (0.0 if reward is None else (reward - mean) / spread)
        found.append(gains)
    return found


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


def gae_batch(
    rewards: Array,
    values: Array,
    mask: Array,
    *,
    gamma: float,
    lam: float,
    skip_tool: bool = False,
    attention: Array | None = None,
) -> tuple[Array, Array]:
    """Computes what `gae` does for each row of a batch that is padded on the right, all rows at once.

    Args:
        rewards: [B, R]; what stands in the padding is not read.
        values: [B, R].
        mask: [B, R], 1 where the policy sampled the token.
        gamma: Discount per step, 0 to 1.
        lam: GAE's λ, 0 to 1.
        skip_tool: Use the next sampled token as t + 1.
        attention: [B, R], 0 in the padding, as `PaddedBatch.attention_mask[:, P:]`. None: a row ends with its last
            sampled token, as the pool's samples do.

    Returns:
        Advantages and returns [B, R]; both are 0 in the padding.

    Raises:
        ShapeMismatch: Shapes differ, or are not [B, R].
        MaskInvalid: `skip_tool`, and a row has a reward that no sampled token can have earned.
    """
    rewards, values = as_floats(rewards=rewards, values=values)
    if len(rewards.shape) != 2:
        raise ShapeMismatch(f"A batch is [B, R]; this has {list(rewards.shape)}.")
    flags = as_flags(mask, rewards)
    xp = namespace(rewards)
    # Counted from the right: a position is inside if a sampled token is at it or after it.
    inside = xp.flip(xp.flip(flags, (1,)).cumsum(1), (1,)) > 0 if attention is None else as_flags(attention, rewards)
    rewards, values = xp.where(inside, rewards, 0.0), xp.where(inside, values, 0.0)
    if skip_tool:
        advantages = _skipping(rewards, values, flags, gamma, lam)
    else:
        advantages = _recurrence(rewards, values, gamma, lam)
    return xp.where(inside, advantages, 0.0), xp.where(inside, advantages + values, 0.0)


def _skipping(rewards: Array, values: Array, flags: Array, gamma: float, lam: float) -> Array:
    """Does what `gae` does where it skips tool tokens, for all rows [B, R] at once."""
    xp = namespace(rewards)
    rows, width = rewards.shape
    # As in `gae`: sampled tokens are moved together at the left of their row, and a position reads the advantage
    # of the first sampled token from it on, which is at the number of sampled tokens before it.
    before = flags.cumsum(1) - 1 * flags
    latest = flags.cumsum(1) - 1
    if bool(((latest < 0) & (rewards != 0)).any()):
        raise MaskInvalid("A row has a reward in front of its first sampled token, or no sampled token at all.")
    starts = xp.arange(rows)[:, None] * width if xp is np else xp.arange(rows, device=rewards.device)[:, None] * width
    earned = add_at(rows * width, (starts + xp.clip(latest, 0, None)).reshape(-1), rewards.reshape(-1))
    moved = add_at(rows * width, (starts + before)[flags], values[flags])
    compressed = _recurrence(earned.reshape(rows, width), moved.reshape(rows, width), gamma, lam)
    # After the last sampled token of a full row `before` is its width, which has no column: there, 0 is meant.
    padded = xp.concatenate([compressed, xp.zeros_like(compressed[:, :1])], axis=-1)
    return xp.take_along_axis(padded, before, 1) if xp is np else xp.gather(padded, 1, before)


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
    """Computes GAE along the last axis."""
    xp = namespace(rewards)
    # The response ends the episode: after the last token the value is 0, not the critic's.
    deltas = rewards + gamma * xp.concatenate([values[..., 1:], xp.zeros_like(values[..., :1])], axis=-1) - values
    # A_t = Σ_k (gamma·lam)^k δ_{t+k}, by doubling the window: log R vector steps instead of R scalar ones.
    advantages, step = deltas, 1
    while step < deltas.shape[-1]:
        tail = xp.concatenate([advantages[..., step:], xp.zeros_like(advantages[..., :step])], axis=-1)
        advantages, step = advantages + (gamma * lam) ** step * tail, 2 * step
    return advantages
