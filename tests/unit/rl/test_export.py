"""Exports: the ledger's ids, masks and log-probabilities arrive unchanged in each trainer's fields."""

from typing import Any

import pytest
from tests.support.exported_rollouts import FORKED, MESSAGES, ONE, PLAIN, UPDATED, failure, rollout, sample

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.export import (
    areal_trajectories,
    marin_conversations,
    marin_rollouts,
    nemo_rl_message_logs,
    openrlhf_output,
    prime_rl_samples,
    skyrl_output,
    slime_samples,
    tinker_data,
    trl_async_samples,
    trl_columns,
    verl_outputs,
)
from rolloutpool_rl.formats import FORMATS, convert


def test_verl() -> None:
    (got,) = verl_outputs(PLAIN, 0.5)
    assert got == {
        "prompt_ids": [1, 2, 3],
        "response_ids": [100, 101, 102, 103, 104, 105],
        "response_mask": [1, 1, 0, 0, 0, 1],
        "response_logprobs": [-0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
        "reward_score": 0.5,
        "num_turns": 2,
        "metrics": {"generate_sequences": 1.5, "tool_calls": 0.25},
        "extra_fields": {
            "rollout_uid": PLAIN.uid,
            "sample": 0,
            "samples": 1,
            "alignment": "exact",
            "num_chat_turns": 4,
        },
    }


def test_slime() -> None:
    (got,) = slime_samples(PLAIN, 0.5, group_index=3, decode=lambda ids: f"{len(ids)} tokens")
    assert got == {
        "group_index": 3,
        "index": 4,
        "rollout_id": 4,
        "prompt": MESSAGES[:3],
        "tokens": [1, 2, 3, 100, 101, 102, 103, 104, 105],
        "response": "6 tokens",
        "response_length": 6,
        "reward": 0.5,
        "loss_mask": [1, 1, 0, 0, 0, 1],
        "rollout_log_probs": [-0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
        "weight_versions": ["7", "7"],
        "status": "completed",
        "metadata": {"task": "sums", "rollout_uid": PLAIN.uid, "sample": 0, "samples": 1, "alignment": "exact"},
    }


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"finish_reason": "length"}, "truncated"),
        ({"finish_reason": "max_tokens"}, "truncated"),
        ({"finish_reason": "max_turns"}, "completed"),
        ({"status": "cancelled", "finish_reason": "cancelled"}, "aborted"),
        ({"status": "expired", "finish_reason": "deadline"}, "aborted"),
    ],
)
def test_slime_status(changes: dict[str, Any], status: str) -> None:
    assert slime_samples(rollout(1, ONE, **changes))[0]["status"] == status


def test_trl() -> None:
    got = trl_columns([PLAIN, PLAIN])
    assert list(got) == ["prompt_ids", "completion_ids", "logprobs", "env_mask", "rollout_uid"]
    assert [len(column) for column in got.values()] == [2] * 5
    assert got["prompt_ids"][0] == [1, 2, 3]
    assert got["completion_ids"][1] == ONE["response_ids"]
    assert got["env_mask"][1] == ONE["response_mask"]
    assert got["logprobs"][1] == ONE["response_logprobs"]


def test_prime_rl() -> None:
    (got,) = prime_rl_samples(PLAIN, env_name="sums", temperature=0.7, advantage=2.0)
    assert got == {
        "token_ids": [1, 2, 3, 100, 101, 102, 103, 104, 105],
        "mask": [False, False, False, True, True, False, False, False, True],
        "logprobs": [0.0, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
        "temperatures": [0.7] * 9,
        "env_name": "sums",
        "advantages": [0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 2.0],
    }
    assert prime_rl_samples(PLAIN, env_name="sums", temperature=1.0)[0]["advantages"] is None


def test_forks_are_samples_of_one_rollout() -> None:
    assert [s["rollout_id"] for s in slime_samples(FORKED, 1.0)] == [5, 5]
    assert [s["reward"] for s in slime_samples(FORKED, 1.0)] == [1.0, 1.0]
    assert [o["reward_score"] for o in verl_outputs(FORKED, [0.25, 0.75])] == [0.25, 0.75]
    assert [o["extra_fields"]["sample"] for o in verl_outputs(FORKED)] == [0, 1]
    assert len(prime_rl_samples(FORKED, env_name="e", temperature=1.0)) == 2


@pytest.mark.parametrize("kind", ["infra", "request"])
def test_a_failure_that_is_not_the_policys_is_no_sample(kind: str) -> None:
    broken = rollout(1, ONE, **failure(kind))
    for export in (
        lambda: verl_outputs(broken, 0.0),
        lambda: slime_samples(broken, 0.0),
        lambda: trl_columns([broken]),
        lambda: prime_rl_samples(broken, env_name="e", temperature=1.0),
    ):
        with pytest.raises(ExportRefused, match=f"r1 failed \\({kind}, network_error\\)"):
            export()


def test_a_failure_of_the_policy_is_data() -> None:
    broken = rollout(1, ONE, **failure("policy"))
    assert slime_samples(broken, 0.0)[0]["status"] == "failed"
    assert verl_outputs(broken, 0.0)[0]["response_mask"] == ONE["response_mask"]


@pytest.mark.parametrize(
    "change",
    [
        {"response_mask": [1]},
        {"response_logprobs": [-1.0]},
        {"response_mask": [1, 1, 0, 0, 0, 2]},
        {"prompt_ids": []},
    ],
)
def test_samples_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ExportRefused, match="Sample 0 of rollout r1"):
        verl_outputs(rollout(1, ONE | change))


def test_as_many_rewards_as_samples() -> None:
    with pytest.raises(ExportRefused, match="2 samples, but 3 rewards"):
        verl_outputs(FORKED, [1.0, 2.0, 3.0])


def test_verl_is_cut_to_its_lengths_and_says_so() -> None:
    (got,) = verl_outputs(PLAIN, prompt_length=2, response_length=4)
    assert got["prompt_ids"] == [2, 3]
    assert got["response_ids"] == [100, 101, 102, 103]
    assert got["response_mask"] == [1, 1, 0, 0]
    assert got["response_logprobs"] == [-0.5, -0.5, 0.0, 0.0]
    assert (got["extra_fields"]["prompt_tokens_cut"], got["extra_fields"]["response_tokens_cut"]) == (1, 2)
    assert verl_outputs(PLAIN, prompt_length=3, response_length=6) == verl_outputs(PLAIN)


def test_trl_asynchronous() -> None:
    (got,) = trl_async_samples(PLAIN, 0.5, group_id=3, metrics={"reward": 1.0})
    arrays = {name: got.pop(name) for name in ("input_ids", "completion_mask", "old_log_probs")}
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "input_ids": [1, 2, 3, 100, 101, 102, 103, 104, 105],
        "completion_mask": [0, 0, 0, 1, 1, 0, 0, 0, 1],
        "old_log_probs": [0.0, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
    }
    assert got == {
        "prompt": MESSAGES[:3],
        "completion": [{key: value for key, value in message.items() if value is not None} for message in MESSAGES[3:]],
        "advantage": 0.5,
        "model_version": 7,
        "group_id": 3,
        "metrics": {"reward": 1.0},
    }
    assert [sample["group_id"] for sample in trl_async_samples(FORKED, 0.5, group_id=4)] == [4, 4]


def test_skyrl() -> None:
    got = skyrl_output([PLAIN, PLAIN], [1.0, 0.5], ["a", "b"])
    assert got == {
        "prompt_token_ids": [[1, 2, 3]] * 2,
        "response_ids": [ONE["response_ids"]] * 2,
        "rewards": [[0, 0, 0, 0, 0, 1.0], [0, 0, 0, 0, 0, 0.5]],
        "loss_masks": [ONE["response_mask"]] * 2,
        "stop_reasons": ["stop", "stop"],
        "rollout_logprobs": [ONE["response_logprobs"]] * 2,
        "trajectory_ids": ["a", "b"],
        "is_last_step": None,
        "rollout_metrics": None,
        "rollout_expert_indices": None,
    }


def test_skyrl_forks_are_steps() -> None:
    got = skyrl_output([PLAIN, FORKED], [1.0, 2.0], ["a", "b"], step_wise=True)
    assert got["trajectory_ids"] == ["a", "b", "b"]
    assert got["is_last_step"] == [True, False, True]
    # SkyRL wants the field of each batch, also of one in which nothing forked.
    assert skyrl_output([PLAIN], [1.0], ["a"], step_wise=True)["is_last_step"] == [True]
    with pytest.raises(ExportRefused, match="needs trajectory ids"):
        skyrl_output([PLAIN], [1.0], step_wise=True)
    with pytest.raises(ExportRefused, match="r5 has 2 samples"):
        skyrl_output([PLAIN, FORKED], [1.0, 2.0], ["a", "b"])
    with pytest.raises(ExportRefused, match="each of 2 rollouts"):
        skyrl_output([PLAIN, FORKED], [1.0])


def test_tinker_is_shifted_by_one() -> None:
    (got,) = tinker_data(PLAIN, 2.0)
    assert got == {
        "model_input": [1, 2, 3, 100, 101, 102, 103, 104],
        "loss_fn_inputs": {
            "target_tokens": [2, 3, 100, 101, 102, 103, 104, 105],
            "logprobs": [0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
            "advantages": [0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 2.0],
        },
    }


def test_nemo_rl() -> None:
    (got,) = nemo_rl_message_logs(PLAIN)
    assert got == [
        {"role": "user", "content": "", "token_ids": [1, 2, 3]},
        {"role": "assistant", "content": "", "token_ids": [100, 101], "generation_logprobs": [-0.5, -0.5]},
        {"role": "user", "content": "", "token_ids": [102, 103, 104]},
        {"role": "assistant", "content": "", "token_ids": [105], "generation_logprobs": [-0.5]},
    ]
    assert len(nemo_rl_message_logs(FORKED)) == 2
    assert nemo_rl_message_logs(rollout(4, UPDATED)) == [got]


def test_a_turn_that_an_agent_took_out_of_training_is_context() -> None:
    untrained = ONE | {"response_mask": [0, 0, 0, 0, 0, 1], "response_logprobs": [0.0] * 5 + [-0.5]}
    (got,) = nemo_rl_message_logs(rollout(1, untrained))
    assert [turn["token_ids"] for turn in got] == [[1, 2, 3, 100, 101, 102, 103, 104], [105]]
    assert openrlhf_output(rollout(1, untrained), 1.0, prompt="p", label="l")["action_ranges"] == [(8, 9)]


def test_areal() -> None:
    (got,) = areal_trajectories(PLAIN, 1.0)
    assert {name: array.tolist() for name, array in got.items()} == {
        "input_ids": [[1, 2, 3, 100, 101, 102, 103, 104, 105]],
        "loss_mask": [[0, 0, 0, 1, 1, 0, 0, 0, 1]],
        "logprobs": [[0.0, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5]],
        "versions": [[-1, -1, -1, 7, 7, -1, -1, -1, 7]],
        "turn_ids": [[0, 0, 0, 1, 1, 1, 1, 1, 2]],
        "attention_mask": [[True] * 9],
        "rewards": [1.0],
    }
    assert {name: array.dtype.name for name, array in got.items()} == {
        **dict.fromkeys(("input_ids", "loss_mask", "versions", "turn_ids"), "int32"),
        "logprobs": "float32",
        "rewards": "float32",
        "attention_mask": "bool",
    }


def test_openrlhf() -> None:
    assert openrlhf_output(PLAIN, 0.5, prompt="p", label="l") == {
        "prompt": "p",
        "label": "l",
        "reward": 0.5,
        "scores": 0.5,
        "observation_tokens": [1, 2, 3, 100, 101, 102, 103, 104, 105],
        "action_ranges": [(3, 5), (8, 9)],
        "rollout_log_probs": [0.0, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5],
        "truncated": False,
        "extra_logs": {"turns": 2, "tool_calls": 0},
    }
    with pytest.raises(ExportRefused, match="r5 has 2 samples"):
        openrlhf_output(FORKED, 1.0, prompt="p", label="l")


def test_marin() -> None:
    single = rollout(1, sample([1, 2], 3, version="step-9"), finish_reason="length")
    (got,) = marin_rollouts(single, 0.5, env_name="sums", env_example_id="7")
    assert got == {
        "env_name": "sums",
        "env_example_id": "7",
        "prompt_tokens": [1, 2],
        "response_tokens": [100, 101, 102],
        "response_logprobs": [-0.5, -0.5, -0.5],
        "token_rewards": [0.5, 0.5, 0.5],
        "episode_reward": 0.5,
        "is_truncated": True,
        "weight_step": 9,
    }
    with pytest.raises(ExportRefused, match="has no mask"):
        marin_rollouts(PLAIN, 0.5, env_name="sums", env_example_id="7")


def test_marin_conversations() -> None:
    (got,) = marin_conversations(rollout(1, ONE, messages=[*MESSAGES, MESSAGES[4]]))
    # The record ends with the policy's last message; a tool result after it was answered by nobody.
    assert got.pop("messages")[-1] == {"role": "assistant", "content": "2"}
    assert got == {
        "prompt_token_ids": (1, 2, 3),
        "response_token_ids": tuple(ONE["response_ids"]),
        "loss_mask": tuple(ONE["response_mask"]),
        "logprobs": tuple(ONE["response_logprobs"]),
    }


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_says_where_it_was_read_and_what_it_loses(name: str) -> None:
    assert len(FORMATS[name].source.split()) > 2
    assert FORMATS[name].lost


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_trains_a_failure_of_the_infrastructure(name: str) -> None:
    with pytest.raises(ExportRefused, match="not the policy's"):
        convert(FORMATS[name], rollout(1, ONE, **failure("infra")), 0.0)
