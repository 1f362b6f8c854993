"""GAE over tool tokens, and rewards that lie on them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.golden_numbers import CLOSE, MASKS

from rolloutpool_rl.advantages import gae, rewards_on_actions
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


def test_skipping_is_gae_on_what_was_sampled() -> None:
    keep = np.array(CASE["mask"], dtype=bool)
    alone, _ = gae(np.array(CASE["rewards"])[keep], np.array(CASE["values"])[keep], **SETTINGS)
    skipping, _ = gae(CASE["rewards"], CASE["values"], CASE["mask"], skip_tool=True, **SETTINGS)
    assert skipping[keep] == pytest.approx(alone, abs=CLOSE)


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


def test_an_empty_response_has_no_advantages() -> None:
    advantages, returns = gae([], [], gamma=1, lam=1)
    assert advantages.shape == returns.shape == (0,)


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
