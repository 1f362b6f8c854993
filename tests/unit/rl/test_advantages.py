"""GAE over tool tokens, and rewards that lie on them."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.golden_numbers import CLOSE, MASKS

from rolloutpool_rl.advantages import gae, gae_batch, group_advantages, rewards_on_actions
from rolloutpool_rl.errors import MaskInvalid, ShapeMismatch

CASE = MASKS["gae"]
TRAP = MASKS["gae_reward_on_tool_token"]
SETTINGS = {"gamma": CASE["gamma"], "lam": CASE["lam"]}


def textbook(rewards: list[float], values: list[float], mask: list[int]) -> list[float]:
    """The recurrence, one token at a time; mask 0 carries the next value and the running advantage over."""
    advantages = [0.0] * len(rewards)
    following, running = 0.0, 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            delta = rewards[t] + SETTINGS["gamma"] * following - values[t]
            running = delta + SETTINGS["gamma"] * SETTINGS["lam"] * running
            following = values[t]
        advantages[t] = running
    return advantages


def test_golden_vanilla() -> None:
    advantages, returns = gae(CASE["rewards"], CASE["values"], **SETTINGS)
    assert advantages == pytest.approx(CASE["vanilla_adv"], abs=CLOSE)
    assert returns == pytest.approx(CASE["vanilla_ret"], abs=CLOSE)
    assert advantages[CASE["last_call_token_index"]] == pytest.approx(CASE["vanilla_at_last_call"], abs=CLOSE)


def test_golden_skip() -> None:
    advantages, returns = gae(CASE["rewards"], CASE["values"], CASE["mask"], skip_tool=True, **SETTINGS)
    assert advantages == pytest.approx(CASE["skip_adv"], abs=CLOSE)
    assert returns == pytest.approx(CASE["skip_ret"], abs=CLOSE)
    assert advantages[CASE["last_call_token_index"]] == pytest.approx(CASE["skip_at_last_call"], abs=CLOSE)


def test_golden_vanilla_depends_on_values_that_nobody_trains() -> None:
    values = [v * m for v, m in zip(CASE["values"], CASE["mask"], strict=True)]
    assert gae(CASE["rewards"], values, **SETTINGS)[0] == pytest.approx(
        CASE["vanilla_adv_if_tool_values_were_0"], abs=CLOSE
    )
    expected, _ = gae(CASE["rewards"], CASE["values"], CASE["mask"], skip_tool=True, **SETTINGS)
    got, _ = gae(CASE["rewards"], values, CASE["mask"], skip_tool=True, **SETTINGS)
    keep = np.array(CASE["mask"], dtype=bool)
    assert got[keep] == pytest.approx(expected[keep], abs=CLOSE)


def test_golden_decay_of_the_terminal_reward() -> None:
    zeros = [0.0] * len(CASE["values"])
    at, decay = CASE["last_call_token_index"], CASE["decay_of_terminal_reward_at_last_call"]
    assert gae(CASE["rewards"], zeros, **SETTINGS)[0][at] == pytest.approx(decay["vanilla"], abs=CLOSE)
    skipping, _ = gae(CASE["rewards"], zeros, CASE["mask"], skip_tool=True, **SETTINGS)
    assert skipping[at] == pytest.approx(decay["skip"], abs=CLOSE)


def test_golden_trap_the_bare_recurrence_drops_a_reward_on_a_tool_token() -> None:
    assert textbook(TRAP["rewards"], TRAP["values"], TRAP["mask"]) == pytest.approx(TRAP["skip_adv"], abs=CLOSE)
    got, _ = gae(TRAP["rewards"], TRAP["values"], TRAP["mask"], skip_tool=True, **SETTINGS)
    assert got == pytest.approx(TRAP["moved_to_last_action_adv"], abs=CLOSE)


def test_each_reward_moves_to_the_action_in_front_of_it() -> None:
    moved = rewards_on_actions([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [1, 0, 0, 1, 1, 0])
    assert moved.tolist() == [7.0, 0.0, 0.0, 8.0, 48.0, 0.0]


def test_no_action_no_reward() -> None:
    with pytest.raises(MaskInvalid, match="No token has mask 1"):
        rewards_on_actions([0.0, 1.0], [0, 0])
    with pytest.raises(MaskInvalid, match="No token has mask 1"):
        gae([0.0, 1.0], [0.0, 0.0], [0, 0], gamma=1, lam=1, skip_tool=True)


def test_a_reward_before_the_first_action_was_earned_by_nobody() -> None:
    with pytest.raises(MaskInvalid, match="which is at 2"):
        rewards_on_actions([0.0, 1.0, 0.0], [0, 0, 1])


def test_skipping_needs_a_mask() -> None:
    with pytest.raises(MaskInvalid, match="needs the mask"):
        gae([1.0], [0.0], gamma=1, lam=1, skip_tool=True)


def test_shapes() -> None:
    with pytest.raises(ShapeMismatch, match=r"rewards \[2\], values \[1\]"):
        gae([1.0, 2.0], [1.0], gamma=1, lam=1)
    with pytest.raises(ShapeMismatch, match="one sequence at a time"):
        gae([[1.0]], [[1.0]], gamma=1, lam=1)
    with pytest.raises(ShapeMismatch, match="The mask has shape"):
        gae([1.0, 2.0], [1.0, 2.0], [1], gamma=1, lam=1, skip_tool=True)


NUMBER = st.floats(-10, 10)
TOKEN = st.tuples(NUMBER, NUMBER, st.integers(0, 1))


@given(st.lists(TOKEN, min_size=1, max_size=70))
def test_equals_the_textbook(tokens: list[tuple[float, float, int]]) -> None:
    rewards, values, mask = [t[0] for t in tokens], [t[1] for t in tokens], [t[2] for t in tokens]
    everywhere = [1] * len(tokens)
    assert gae(rewards, values, **SETTINGS)[0] == pytest.approx(textbook(rewards, values, everywhere), abs=1e-6)
    if any(mask):
        rewards = [r if m else 0.0 for r, m in zip(rewards, mask, strict=True)]
        got, _ = gae(rewards, values, mask, skip_tool=True, **SETTINGS)
        assert got == pytest.approx(textbook(rewards, values, mask), abs=1e-6)


@given(st.lists(TOKEN, min_size=1, max_size=70))
def test_moving_rewards_keeps_their_sum_and_puts_them_on_actions(tokens: list[tuple[float, float, int]]) -> None:
    rewards, mask = [1.0] + [token[0] for token in tokens], [1] + [token[2] for token in tokens]
    moved = rewards_on_actions(rewards, mask)
    assert moved.sum() == pytest.approx(sum(rewards), abs=1e-6)
    assert not moved[np.array(mask) == 0].any()


def grpo(rewards: list[float], groups: list[int]) -> list[float]:
    """GRPO as its paper writes it, group by group, with Python's own statistics."""
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [other for other, name in zip(rewards, groups, strict=True) if name == group]
        spread = statistics.stdev(own) if len(own) > 1 else 0.0
        found.append((reward - statistics.mean(own)) / (spread + 1e-6) if len(own) > 1 else 0.0)
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 3)), min_size=1, max_size=20))
def test_groups_as_their_papers_have_them(rollouts: list[tuple[float, int]]) -> None:
    rewards, groups = [reward for reward, _ in rollouts], [group for _, group in rollouts]
    assert group_advantages(rewards, groups) == pytest.approx(grpo(rewards, groups), abs=1e-6)
    rloo = group_advantages(rewards, groups, std=None, leave_one_out=True)
    for place, (reward, group) in enumerate(rollouts):
        others = [r for i, (r, g) in enumerate(rollouts) if g == group and i != place]
        assert rloo[place] == pytest.approx(reward - statistics.mean(others) if others else 0.0, abs=CLOSE)


def test_what_the_difference_is_divided_by() -> None:
    rewards, groups = [1.0, 0.0, 5.0, 3.0], ["a", "a", "b", "b"]
    assert group_advantages(rewards, groups, std=None).tolist() == [0.5, -0.5, 1.0, -1.0]
    spread = statistics.stdev(rewards) + 1e-6
    assert group_advantages(rewards, groups, std="batch") == pytest.approx(
        [0.5 / spread, -0.5 / spread, 1 / spread, -1 / spread]
    )


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(ShapeMismatch, match="1 groups for 2 rewards"):
        group_advantages([1.0, 2.0], ["a"])
    with pytest.raises(ShapeMismatch):
        group_advantages([[1.0, 2.0]], ["a"])
    with pytest.raises(ValueError, match="no std 'none'"):
        group_advantages([1.0], ["a"], std="none")  # type: ignore[arg-type]


@st.composite
def padded_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Rewards, values, mask and attention of rows that begin with a sampled token; rubbish in the padding."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    width = max(lengths) + draw(st.integers(0, 2))
    numbers = st.floats(-5, 5)
    shape = (len(lengths), width)
    rewards = np.array(draw(st.lists(numbers, min_size=len(lengths) * width, max_size=len(lengths) * width))).reshape(
        shape
    )
    values = np.array(draw(st.lists(numbers, min_size=len(lengths) * width, max_size=len(lengths) * width))).reshape(
        shape
    )
    mask, attention = np.zeros(shape, dtype=int), np.zeros(shape, dtype=int)
    for row, length in enumerate(lengths):
        mask[row, :length] = [1, *draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))]
        attention[row, :length] = 1
    return rewards, values, mask, attention, lengths


@settings(deadline=None)
@given(padded_rows(), st.booleans())
def test_a_batch_is_its_rows(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[int]], skip: bool
) -> None:
    rewards, values, mask, attention, lengths = rows
    got, returns = gae_batch(rewards, values, mask, skip_tool=skip, attention=attention, **SETTINGS)
    for row, length in enumerate(lengths):
        part = (row, slice(length))
        alone = gae(rewards[part], values[part], mask[part], skip_tool=skip, **SETTINGS)
        assert got[part] == pytest.approx(alone[0], abs=CLOSE)
        assert returns[part] == pytest.approx(alone[1], abs=CLOSE)
        assert not got[row, length:].any()
        assert not returns[row, length:].any()


def test_without_attention_a_row_ends_with_its_last_sampled_token() -> None:
    rewards, values, mask = np.full((1, 4), 2.0), np.full((1, 4), 0.5), [[1, 0, 1, 0]]
    got, _ = gae_batch(rewards, values, mask, **SETTINGS)
    assert got[0, :3] == pytest.approx(gae([2.0] * 3, [0.5] * 3, **SETTINGS)[0])
    assert got[0, 3] == 0


def test_batches_that_cannot_be() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[B, R\]"):
        gae_batch([1.0], [1.0], [1], **SETTINGS)
    with pytest.raises(MaskInvalid, match="in front of its first sampled token"):
        gae_batch([[1.0, 0.0]], [[0.0, 0.0]], [[0, 1]], skip_tool=True, **SETTINGS)
    with pytest.raises(MaskInvalid, match="no sampled token"):
        gae_batch([[0.0, 1.0]], [[0.0, 0.0]], [[0, 0]], skip_tool=True, attention=[[1, 1]], **SETTINGS)
