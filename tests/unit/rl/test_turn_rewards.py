"""Rewards of turns: read from results, made into advantages, and put on tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.exported_rollouts import FORKED, ONE, PLAIN, rollout

from rolloutpool_rl.advantages import group_advantages, turn_advantages
from rolloutpool_rl.errors import ExportRefused, ShapeMismatch
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_rl.turn_rewards import turn_rewards


def in_environment(turns: int, rewards: list[float | None], after: list[int]) -> Any:
    summary = {
        "prompt_tokens": 2,
        "sampled_tokens": 2,
        "mask_sent": None,
        "finish_reason": "stop",
        "drift": "none",
        "tool_calls": 0,
        "stop": "sampled",
    }
    report = {"name": "game", "crash": "none", "steps": len(rewards), "step_rewards": rewards, "step_turns": after}
    return rollout(0, ONE, turns=[{"turn": n + 1, **summary} for n in range(turns)], environment=report)


def test_rewards_of_a_turn_s_steps_are_added_up() -> None:
    result = in_environment(4, [0.5, None, 0.25, None, -1.0], [1, 1, 1, 2, 3])
    assert turn_rewards(result) == [0.75, None, -1.0, None]


@pytest.mark.parametrize("result", [PLAIN, in_environment(2, [1.0, 2.0], [])])
def test_a_result_that_does_not_say_which_turn_is_refused(result: Any) -> None:
    with pytest.raises(ExportRefused, match="says nothing of its environment's steps"):
        turn_rewards(result)


def test_process_supervision_by_hand() -> None:
    # All rewards of group a: 1, 0, 0, 3; mean 1, standard deviation √2.
    gains = turn_advantages([[1.0, 0.0], [0.0, 3.0], [5.0]], ["a", "a", "b"])
    root = 2**0.5
    assert np.allclose(gains[0], [-1 / root, -1 / root], atol=1e-5)
    assert np.allclose(gains[1], [1 / root, 2 / root], atol=1e-5)
    # Alone in its group, it is compared with nothing.
    assert gains[2].tolist() == [0.0]
    assert turn_advantages([[1.0, 0.0], [0.0, 3.0]], "aa", std=None, gamma=0.5)[1].tolist() == [0.0, 2.0]


def test_no_reward_is_not_a_reward_of_zero() -> None:
    gains = turn_advantages([[None, 1.0, None], [None, None]], "aa", std=None)
    # The only reward is the mean.
    assert [one.tolist() for one in gains] == [[0.0, 0.0, 0.0], [0.0, 0.0]]
    assert turn_advantages([[None, 2.0], [0.0]], "aa", std=None)[0].tolist() == [1.0, 1.0]
    assert [one.tolist() for one in turn_advantages([[], [None]], "aa")] == [[], [0.0]]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.integers(1, 4), st.sampled_from(["group", None]))
def test_one_reward_at_the_end_is_grpo(rewards: list[float], turns: int, std: Any) -> None:
    known = [[None] * (turns - 1) + [reward] for reward in rewards]
    expected = group_advantages(rewards, ["g"] * len(rewards), std=std)
    for gains, gain in zip(turn_advantages(known, ["g"] * len(rewards), std=std), expected, strict=True):
        assert np.allclose(gains, gain, rtol=1e-6, atol=1e-6)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="1 groups for 2 rollouts"):
        turn_advantages([[1.0], [2.0]], ["a"])
    with pytest.raises(ValueError, match="no std 'batch'"):
        turn_advantages([], [], std="batch")  # type: ignore[arg-type]
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="gamma must be between 0 and 1"):
            turn_advantages([], [], gamma=gamma)


def test_each_token_gets_the_advantage_of_its_turn() -> None:
    batch = padded_batch([PLAIN, FORKED], pad_id=0).with_turn_advantages([[1.0, -2.0], np.array([0.5])])
    assert batch.advantages.tolist() == [[1, 1, 0, 0, 0, -2], [0.5, 0.5, 0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5, 0, 0]]
    assert batch.advantages.dtype == np.float32
    for wrong in ([[1.0], [0.5]], [[1.0, -2.0]]):
        with pytest.raises(ExportRefused, match=r"turns, but \d advantages"):
            padded_batch([PLAIN, FORKED], pad_id=0).with_turn_advantages(wrong)
