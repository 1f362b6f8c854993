"""Results in the forms that trainers read, as plain Python values; none of their frameworks is needed.

A sample is exported as it is: ids, mask and log-probabilities are the ledger's, and nothing is cut or padded, unless an
argument says so. `formats.FORMATS` has each trainer's fields, the version that they were read from, and what has no
place in them.

- A rollout that forked has several samples, and each is exported. A format that has no place for them refuses it.
- A rollout that failed for a reason other than the policy is refused: it is not a sample with reward 0.
- Samples in which nothing is trained are left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.formats import FORMATS, Forks, convert
from rolloutpool_rl.training_rows import Reward, trainable, training_rows

__all__ = [
    "Reward",
    "areal_trajectories",
    "marin_conversations",
    "marin_rollouts",
    "nemo_rl_message_logs",
    "openrlhf_output",
    "prime_rl_samples",
    "skyrl_output",
    "slime_samples",
    "tinker_data",
    "trainable",
    "trl_async_samples",
    "trl_columns",
    "verl_outputs",
]


def trl_columns(results: Sequence[RolloutResult]) -> dict[str, list[Any]]:
    """Makes what TRL's `GRPOTrainer` takes from a `rollout_func` (TRL 1.16.0).

    `env_mask` keeps tool tokens out of the loss; `rollout_uid` is passed on to the reward functions.

    Args:
        results: Of rollouts, in the order of the prompts.

    Returns:
        Columns with one row for each rollout.

    Raises:
        ExportRefused: See `trainable`; also a forked rollout, because TRL has one completion per row.
    """
    return _columns("trl", [row for result in results for row in convert(FORMATS["trl"], result)])


def trl_async_samples(
    result: RolloutResult, advantage: Reward, *, group_id: int, metrics: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """Makes the fields of `RolloutSample` for TRL's `AsyncGRPOTrainer` (TRL 1.16.0).

    Args:
        result: Of a rollout.
        advantage: Of the rollout, or one for each of its samples; this trainer computes none itself.
        group_id: The number of its group.
        metrics: Of the rollout, for the trainer's log.

    Returns:
        One dict for each sample. Its arrays run over prompt and response, [P + R].

    Raises:
        ExportRefused: See `trainable`.
    """
    types = {"input_ids": np.int64, "completion_mask": np.int64, "old_log_probs": np.float32}
    return [
        {name: np.array(value, types[name]) if name in types else value for name, value in row.items()}
        | {"group_id": group_id, "metrics": dict(metrics or {})}
        for row in convert(FORMATS["trl_async"], result, advantage)
    ]


def verl_outputs(
    result: RolloutResult,
    reward: Reward = None,
    *,
    forks: Forks = Forks.ROWS,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> list[dict[str, Any]]:
    """Makes the fields of verl's `AgentLoopOutput` (verl 0.9.1).

    `num_turns` is the number of model calls, as in protocol v1. verl's own loops also count the prompt and each
    answer of tools or a user; that number is `extra_fields["num_chat_turns"]`. Metrics are in seconds.

    Args:
        result: Of a rollout.
        reward: See `Reward`.
        forks: An AgentLoop returns one row, so it takes `Forks.LAST` or `Forks.REFUSE`.
        prompt_length: `rollout.prompt_length`; of a longer prompt the end is kept. verl's padding cuts nothing itself.
        response_length: `rollout.response_length`; of a longer response the beginning is kept.

    Returns:
        One dict for each sample.

    Raises:
        ExportRefused: See `trainable`.
    """
    outputs = convert(FORMATS["verl"], result, reward, forks=forks)
    for output in outputs:
        extra = output["extra_fields"]
        prompt, response = len(output["prompt_ids"]), len(output["response_ids"])
        if prompt_length is not None and prompt > prompt_length:
            output["prompt_ids"] = output["prompt_ids"][prompt - prompt_length :]
            extra["prompt_tokens_cut"] = prompt - prompt_length
        if response_length is not None and response > response_length:
            for name in ("response_ids", "response_mask", "response_logprobs"):
                output[name] = output[name][:response_length]
            extra["response_tokens_cut"] = response - response_length
    return outputs


def slime_samples(
    result: RolloutResult,
    reward: Reward = None,
    *,
    group_index: int | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> list[dict[str, Any]]:
    """Makes the fields for slime's `Sample.from_dict` (slime 0.3.1).

    Args:
        result: Its `index` becomes slime's `index`, and the `rollout_id` that all its samples share. By that id slime
            averages within a rollout instead of counting each fork.
        reward: See `Reward`.
        group_index: The prompt's number, for advantages within a group.
        decode: Makes the text `response` for reward functions that read it; without it, the text is empty.

    Returns:
        One dict for each sample.

    Raises:
        ExportRefused: See `trainable`.
    """
    samples = convert(FORMATS["slime"], result, reward, group_index=group_index)
    if decode is not None:
        for sample in samples:
            sample["response"] = decode(sample["tokens"][-sample["response_length"] :])
    return samples


def prime_rl_samples(
    result: RolloutResult, *, env_name: str, temperature: float, advantage: Reward = None
) -> list[dict[str, Any]]:
    """Makes the fields of prime-rl's `TrainingSample` (prime-rl 0.8.0).

    Args:
        result: Of a rollout.
        env_name: Copied.
        temperature: What the policy was sampled with.
        advantage: Of the rollout, or one for each of its samples; at mask 0 it is 0.0. None leaves it out.

    Returns:
        One dict for each sample. All its lists run over prompt and response, [P + R].

    Raises:
        ExportRefused: See `trainable`.
    """
    rows = convert(FORMATS["prime_rl"], result, advantage)
    return [row | {"temperatures": [temperature] * len(row["mask"]), "env_name": env_name} for row in rows]


def skyrl_output(
    results: Sequence[RolloutResult],
    rewards: Sequence[Reward],
    trajectory_ids: Sequence[Any] | None = None,
    *,
    step_wise: bool = False,
) -> dict[str, Any]:
    """Makes SkyRL's `GeneratorOutput` (SkyRL 0.4.0, whose `validate_generator_output` says what must be there).

    Args:
        results: In the order of the input batch.
        rewards: One entry for each rollout; it stands on the last trained token.
        trajectory_ids: Those of the input batch; each row gets that of its rollout.
        step_wise: SkyRL's `generator.step_wise_trajectories`. With it a rollout that forked has a row for each sample,
            the last of which says so, and trajectory ids are needed. Without it SkyRL takes one row for each rollout.

    Raises:
        ExportRefused: See `trainable`; also a rollout that has not one row where SkyRL takes one, and if there are not
            as many rewards or trajectory ids as rollouts.
    """
    if step_wise and trajectory_ids is None:
        raise ExportRefused("SkyRL needs trajectory ids to train step by step.")
    if len(rewards) != len(results) or (trajectory_ids is not None and len(trajectory_ids) != len(results)):
        raise ExportRefused(f"There must be a reward, and a trajectory id, for each of {len(results)} rollouts.")
    forks = Forks.ROWS if step_wise else Forks.REFUSE
    rows = [
        convert(FORMATS["skyrl"], result, reward, forks=forks) for result, reward in zip(results, rewards, strict=True)
    ]
    output: dict[str, Any] = dict(_columns("skyrl", [row for of_rollout in rows for row in of_rollout]))
    if trajectory_ids is not None:
        output["trajectory_ids"] = [name for name, own in zip(trajectory_ids, rows, strict=True) for _ in own]
    if not step_wise:
        output["is_last_step"] = None
    return output | {"rollout_metrics": None, "rollout_expert_indices": None}


def tinker_data(result: RolloutResult, advantage: Reward) -> list[dict[str, Any]]:
    """Makes what a Tinker `Datum` takes (Tinker 0.38.0), shifted: position t holds what token t + 1 is trained with.

    Args:
        result: Of a rollout.
        advantage: Of the rollout, or one for each of its samples.

    Returns:
        For each sample `{"model_input": ids, "loss_fn_inputs": {…}}`; `ModelInput.from_ints(ids)` makes the first.

    Raises:
        ExportRefused: See `trainable`.
    """
    rows = convert(FORMATS["tinker"], result, advantage)
    return [{"model_input": row.pop("model_input"), "loss_fn_inputs": row} for row in rows]


def nemo_rl_message_logs(result: RolloutResult) -> list[list[dict[str, Any]]]:
    """Makes NeMo-RL's `message_log` (nemo_rl/environments/nemo_gym.py): turns whose ids together are the sequence.

    It has no place for policy versions. NeMo-RL checks that the ids are contiguous, which each sample is by itself.

    Returns:
        For each sample its messages: `role` (`user` for what the policy did not sample, `assistant`), `content`
        (empty: the ids count), `token_ids`, and of the policy's turns `generation_logprobs`.

    Raises:
        ExportRefused: See `trainable`.
    """
    logs = []
    for row in training_rows(result):
        log: list[dict[str, Any]] = []
        position = 0
        for start, end in row.action_ranges:
            if start > position:
                log.append({"role": "user", "content": "", "token_ids": row.ids[position:start]})
            logprobs = row.whole_logprobs[start:end]
            turn = {"role": "assistant", "content": "", "token_ids": row.ids[start:end]}
            log.append(turn | {"generation_logprobs": logprobs})
            position = end
        if position < len(row.ids):
            log.append({"role": "user", "content": "", "token_ids": row.ids[position:]})
        logs.append(log)
    return logs


def areal_trajectories(result: RolloutResult, reward: Reward) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Makes the arrays that AReaL's `arun_episode` returns as tensors (AReaL at cbff54d64).

    Args:
        result: Of a rollout. Where a rollout is refused, the workflow returns None.
        reward: See `Reward`.

    Returns:
        For each sample a dict of arrays [1, P + R]; `rewards` is [1].

    Raises:
        ExportRefused: See `trainable`.
    """
    types = {"logprobs": np.float32, "rewards": np.float32, "attention_mask": np.bool_}
    return [
        {name: np.array([value], types.get(name, np.int32)) for name, value in row.items()}
        for row in convert(FORMATS["areal"], result, 0.0 if reward is None else reward)
    ]


def openrlhf_output(result: RolloutResult, reward: float, *, prompt: Any, label: Any) -> dict[str, Any]:
    """Makes what an OpenRLHF agent's `execute` returns (OpenRLHF 0.11.2).

    Args:
        result: Of a rollout with one sample.
        reward: Of the episode.
        prompt: As `execute` got it.
        label: As `execute` got it.

    Raises:
        ExportRefused: See `trainable`; also a forked rollout, because `execute` returns one sequence.
    """
    (row,) = convert(FORMATS["openrlhf"], result, reward)
    return {"prompt": prompt, "label": label, **row}


def marin_rollouts(result: RolloutResult, reward: float, *, env_name: str, env_example_id: str) -> list[dict[str, Any]]:
    """Makes the fields of Marin's `Rollout` (Marin at 247c3a93d); `weight_step` belongs into its `metadata`.

    Args:
        result: Of a rollout of one turn.
        reward: Of the episode.
        env_name: Copied.
        env_example_id: Copied.

    Raises:
        ExportRefused: See `trainable`; also a response with tokens that were not sampled, because this type has no
            mask, and would train them.
    """
    rows = convert(FORMATS["marin"], result, reward)
    if any(0 in sample.response_mask for _, sample, _ in trainable(result)):
        raise ExportRefused(
            f"Rollout {result.rollout_id} holds tokens that the policy did not sample. Marin's Rollout has no mask, so "
            "they would be trained; use marin_conversations."
        )
    return [{"env_name": env_name, "env_example_id": env_example_id, **row} for row in rows]


def marin_conversations(result: RolloutResult) -> list[dict[str, Any]]:
    """Makes the fields of rolloutengine's `ConversationRecord` (marin-rolloutengine 0.2.227).

    Raises:
        ExportRefused: See `trainable`.
    """
    return convert(FORMATS["marin_conversation"], result)


def _columns(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {field: [row[field] for row in rows] for field in FORMATS[name].fields}
