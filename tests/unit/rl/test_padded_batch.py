"""Results as one padded batch: what is left out is counted, and the rest is where trainers look for it."""

from dataclasses import fields

import numpy as np
import pytest
from tests.support.exported_rollouts import FORKED, ONE, PLAIN, UNTRAINED, failure, rollout

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_rl.reductions import sum_of_sample_mean


def test_padded_batch() -> None:
    got = padded_batch([PLAIN, FORKED], [0.5, 1.0], pad_id=77)
    assert got.input_ids.tolist() == [
        [77, 77, 1, 2, 3, 100, 101, 102, 103, 104, 105],
        [77, 77, 77, 1, 2, 100, 101, 77, 77, 77, 77],
        [1, 2, 9, 9, 9, 100, 101, 102, 103, 77, 77],
    ]
    assert got.prompts.tolist() == [row[:5] for row in got.input_ids.tolist()]
    assert got.responses.tolist() == [row[5:] for row in got.input_ids.tolist()]
    assert got.attention_mask.tolist() == (got.input_ids != 77).astype(int).tolist()
    assert got.position_ids[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert got.position_ids[1].tolist() == [0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3]
    assert got.response_mask.tolist() == [[1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
    assert got.rollout_log_probs.tolist() == (-0.5 * got.response_mask).tolist()
    assert got.rm_scores.tolist() == [[0, 0, 0, 0, 0, 0.5], [0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    assert got.rollout.tolist() == [0, 1, 1]
    assert got.rollout_mask_sums.tolist() == [3, 6, 6]


def test_padded_types_and_widths() -> None:
    got = padded_batch([PLAIN], pad_id=0, prompt_length=8, response_length=16)
    floats = {"rollout_log_probs", "rm_scores", "advantages"}
    for name, shape in {
        "prompts": (1, 8),
        "responses": (1, 16),
        "input_ids": (1, 24),
        "attention_mask": (1, 24),
        "position_ids": (1, 24),
        "response_mask": (1, 16),
        "rollout_log_probs": (1, 16),
        "rm_scores": (1, 16),
        "advantages": (1, 16),
        "versions": (1, 16),
        "turns": (1, 16),
        "rollout": (1,),
        "rollout_mask_sums": (1,),
    }.items():
        array = getattr(got, name)
        assert array.shape == shape
        assert array.dtype.name == ("float32" if name in floats else "int64")
    assert not got.rm_scores.any()


def test_a_forked_rollout_weighs_as_one() -> None:
    got = padded_batch([FORKED], [1.0], pad_id=0)
    x, masks = np.ones(got.responses.size), list(got.response_mask)
    lengths = [got.responses.shape[1]] * 2
    assert sum_of_sample_mean(x, lengths, masks) == 2.0
    assert sum_of_sample_mean(x, lengths, masks, got.rollout_mask_sums.tolist()) == pytest.approx(1.0)


def test_each_row_says_who_sampled_what() -> None:
    got = padded_batch([PLAIN, FORKED], [0.0, 0.0], advantages=[2.0, [1.0, -1.0]], pad_id=0)
    assert got.advantages.tolist() == [[2, 2, 0, 0, 0, 2], [1, 1, 0, 0, 0, 0], [-1, -1, -1, -1, 0, 0]]
    assert got.versions.tolist() == [[7, 7, -1, -1, -1, 7], [-1] * 6, [-1] * 6]
    assert got.turns.tolist() == [[1, 1, 1, 1, 1, 2], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
    assert got.dropped == {}
    assert len(got) == 3


def test_what_cannot_be_trained_is_left_out_and_counted() -> None:
    broken = rollout(2, ONE | {"response_mask": [1]})
    results = [
        rollout(0, ONE, **failure("infra")),
        PLAIN,
        broken,
        rollout(3, UNTRAINED),
        FORKED,
        rollout(6, ONE),
        rollout(7, ONE),
        rollout(8),
        rollout(9, ONE, **failure("policy")),
    ]
    rewards = [0.0, 1.0, 1.0, 1.0, 1.0, None, 1.0, 1.0, 0.0]
    advantages = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, None, 1.0, -1.0]
    got = padded_batch(results, rewards, advantages=advantages, pad_id=0, prompt_length=4, response_length=6)
    assert got.rollout.tolist() == [1, 4, 8]
    assert got.dropped == {
        "infra:network_error": 1,
        "broken": 1,
        "untrained": 2,
        "no_reward": 1,
        "no_advantage": 1,
        "prompt_too_long": 1,
    }
    # The fork that did not fit takes no part in its rollout's weight.
    assert got.rollout_mask_sums.tolist() == [3, 2, 3]
    assert padded_batch([PLAIN], pad_id=0, response_length=5).dropped == {"response_too_long": 1}


def test_a_batch_of_nothing_has_no_rows() -> None:
    for results in ([], [rollout(1, UNTRAINED)]):
        got = padded_batch(results, pad_id=0, prompt_length=3, response_length=2)
        assert (len(got), got.input_ids.shape, got.responses.shape) == (0, (0, 5), (0, 2))
    assert padded_batch([], pad_id=0).input_ids.shape == (0, 0)


def test_that_nothing_of_a_batch_can_be_trained_is_said(caplog: pytest.LogCaptureFixture) -> None:
    padded_batch([], pad_id=0)
    assert caplog.messages == []
    padded_batch([rollout(1, UNTRAINED), rollout(2, ONE, **failure("infra"))], pad_id=0)
    (said,) = caplog.messages
    assert said.startswith("none of 2 rollouts has a sample to train on: {")
    assert "'untrained': 1" in said


def test_another_number_of_rewards_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ExportRefused, match="2 rewards for 1"):
        padded_batch([PLAIN], [1.0, 2.0], pad_id=0)
    with pytest.raises(ExportRefused, match="1 advantages for 2"):
        padded_batch([PLAIN, PLAIN], advantages=[1.0], pad_id=0)
    with pytest.raises(ExportRefused, match="2 samples but 3 advantages"):
        padded_batch([FORKED], advantages=[[1.0, 2.0, 3.0]], pad_id=0)


def test_tensors_are_copies_of_the_arrays() -> None:
    torch = pytest.importorskip("torch", reason="torch is no dependency: make test-learn runs this")
    got = padded_batch([PLAIN, FORKED], [0.5, 1.0], pad_id=77)
    tensors = got.to_torch("cpu")
    assert set(tensors) == {part.name for part in fields(got)} - {"dropped"}
    for name, tensor in tensors.items():
        array = getattr(got, name)
        assert tensor.dtype == (torch.float32 if array.dtype == np.float32 else torch.int64)
        assert (tensor.numpy() == array).all()
    tensors["input_ids"][:] = 0
    assert got.input_ids.any()
