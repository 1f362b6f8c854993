"""Exports: the ledger's ids, masks and log-probabilities arrive unchanged in each trainer's fields."""

from typing import Any

import numpy as np
import pytest
from tests.support.api_documents import result

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.export import prime_rl_samples, slime_samples, trl_columns, verl_outputs
from rolloutpool_rl.logits import response_slice
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_rl.reductions import sum_of_sample_mean

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Example?"},
    {"role": "assistant", "content": "An example that nobody sampled."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
    {"role": "assistant", "content": "2"},
]


def sample(prompt: list[int], sampled: int, glue: int = 0, more: int = 0, version: str | None = None) -> dict[str, Any]:
    n = sampled + glue + more
    mask = [1] * sampled + [0] * glue + [1] * more
    kinds = [("sampled", sampled, 1), ("glue", glue, 1), ("sampled", more, 2)]
    segments, start = [], 0
    for kind, size, turn in kinds:
        if size:
            found = version if kind == "sampled" else None
            segments.append({"kind": kind, "start": start, "n": size, "turn": turn, "policy_version": found})
            start += size
    return {
        "prompt_ids": prompt,
        "response_ids": [100 + i for i in range(n)],
        "response_mask": mask,
        "response_logprobs": [-0.5 * m for m in mask],
        "segments": segments,
    }


def rollout(index: int, *samples: dict[str, Any], **changes: Any) -> RolloutResult:
    document = result(index, samples=list(samples), messages=MESSAGES, num_llm_calls=2)
    return RolloutResult.model_validate(document | changes)


ONE = sample([1, 2, 3], 2, 3, 1, version="7")
PLAIN = rollout(4, ONE, group="g", metadata={"task": "sums"}, spans={"llm_ms": 1500, "tools_ms": 250})
FORKED = rollout(5, sample([1, 2], 2), sample([1, 2, 9, 9, 9], 4), alignment="forked")
UNTRAINED = ONE | {"response_mask": [0] * 6}


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


@pytest.mark.parametrize(
    ("messages", "calls", "expected"),
    [
        ([MESSAGES[2], MESSAGES[6]], 1, 2),
        ([MESSAGES[2], *MESSAGES[3:6]], 1, 3),
        ([MESSAGES[2], MESSAGES[6], MESSAGES[2], MESSAGES[6]], 2, 4),
        ([MESSAGES[2]], 0, 1),
    ],
    ids=["one answer", "ended on tools", "a user asks again", "no answer"],
)
def test_chat_turns_are_the_prompt_the_answers_and_the_feedback(
    messages: list[dict[str, Any]], calls: int, expected: int
) -> None:
    (got,) = verl_outputs(rollout(1, ONE, messages=messages, num_llm_calls=calls))
    assert got["extra_fields"]["num_chat_turns"] == expected
    assert got["num_turns"] == calls


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


def test_trl_has_no_place_for_forks() -> None:
    with pytest.raises(ExportRefused, match="r5 has 2 samples"):
        trl_columns([PLAIN, FORKED])


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


def test_samples_without_trained_tokens_are_left_out() -> None:
    mixed = rollout(1, UNTRAINED, ONE)
    assert [o["extra_fields"]["sample"] for o in verl_outputs(mixed, [0.0, 9.0])] == [1]
    assert verl_outputs(mixed, [0.0, 9.0])[0]["reward_score"] == 9.0
    assert verl_outputs(rollout(1, UNTRAINED)) == []


def failure(kind: str) -> dict[str, Any]:
    return {
        "status": "failed",
        "finish_reason": "error",
        "failure": {
            "kind": kind,
            "boundary": "trainer",
            "category": "network_error",
            "message": "The trainer is gone.",
            "retryable": False,
        },
    }


@pytest.mark.parametrize("kind", ["infra", "request"])
def test_a_failure_that_is_not_the_policys_is_no_sample(kind: str) -> None:
    broken = rollout(1, ONE, **failure(kind))
    for export in (
        lambda: verl_outputs(broken, 0.0),
        lambda: slime_samples(broken, 0.0),
        lambda: trl_columns([broken]),
        lambda: prime_rl_samples(broken, env_name="e", temperature=1.0),
        lambda: padded_batch([broken], pad_id=0),
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
    floats = {"rollout_log_probs", "rm_scores"}
    for name, shape in {
        "prompts": (1, 8),
        "responses": (1, 16),
        "input_ids": (1, 24),
        "attention_mask": (1, 24),
        "position_ids": (1, 24),
        "response_mask": (1, 16),
        "rollout_log_probs": (1, 16),
        "rm_scores": (1, 16),
        "rollout": (1,),
        "rollout_mask_sums": (1,),
    }.items():
        array = getattr(got, name)
        assert array.shape == shape
        assert array.dtype.name == ("float32" if name in floats else "int64")
    assert not got.rm_scores.any()


def test_padded_logits_of_a_response_predict_it() -> None:
    got = padded_batch([PLAIN, FORKED], pad_id=0)
    predictions = np.roll(got.input_ids, -1, axis=1)
    width = got.input_ids.shape[1]
    assert (predictions[:, response_slice(width, got.responses.shape[1])] == got.responses).all()


def test_the_reward_lies_on_the_last_trained_token() -> None:
    cut = ONE | {"response_mask": [1, 1, 0, 0, 0, 0]}
    assert padded_batch([rollout(1, cut)], [3.0], pad_id=0).rm_scores.tolist() == [[0, 3, 0, 0, 0, 0]]


def test_a_forked_rollout_weighs_as_one() -> None:
    got = padded_batch([FORKED], [1.0], pad_id=0)
    x, masks = np.ones(got.responses.size), list(got.response_mask)
    lengths = [got.responses.shape[1]] * 2
    assert sum_of_sample_mean(x, lengths, masks) == 2.0
    assert sum_of_sample_mean(x, lengths, masks, got.rollout_mask_sums.tolist()) == pytest.approx(1.0)


def test_padding_refuses_what_it_would_have_to_cut() -> None:
    with pytest.raises(ExportRefused, match="response of 6 tokens does not fit into 5"):
        padded_batch([PLAIN], pad_id=0, response_length=5)
    with pytest.raises(ExportRefused, match="prompt of 5 tokens"):
        padded_batch([FORKED], pad_id=0, prompt_length=4)
    with pytest.raises(ExportRefused, match="token to train"):
        padded_batch([rollout(1, UNTRAINED)], pad_id=0)
    with pytest.raises(ExportRefused, match="token to train"):
        padded_batch([], pad_id=0)
    with pytest.raises(ExportRefused, match="2 rewards for 1"):
        padded_batch([PLAIN], [1.0, 2.0], pad_id=0)
    with pytest.raises(ExportRefused, match="r4 has no reward"):
        padded_batch([PLAIN], [None], pad_id=0)
