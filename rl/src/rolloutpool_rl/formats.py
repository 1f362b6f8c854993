"""Each trainer's format as a table: its field, and what of a `TrainingRow` it gets.

A format says with which version its fields were read, how it takes a rollout with several samples, and what it has no
place for. `convert` applies a table. What needs more than a table (columns instead of rows, tensors, a message log) is
built from it in `export`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.training_rows import Reward, TrainingRow, training_rows

Take = Callable[[TrainingRow], Any]


class Forks(StrEnum):
    """Says what becomes of a rollout that has several samples."""

    ROWS = "rows"
    """Each sample is a row of its own."""
    REFUSE = "refuse"
    """The trainer takes one row for each rollout, so the rollout is refused."""
    LAST = "last"
    """Only the sample that ends the rollout is delivered. What the policy sampled before it is lost."""


@dataclass(frozen=True, slots=True)
class TrainerFormat:
    """How one trainer wants its rows."""

    source: str
    """Which version the fields were read from, and where."""
    forks: Forks
    lost: str
    """What of a result it has no place for."""
    fields: Mapping[str, Take]


def convert(
    format: TrainerFormat,
    result: RolloutResult,
    reward: Reward = None,
    *,
    forks: Forks | None = None,
    group_index: int | None = None,
) -> list[dict[str, Any]]:
    """Makes a trainer's rows of one rollout.

    Args:
        format: One of `FORMATS`.
        result: Of the rollout.
        reward: See `Reward`.
        forks: What to do with several samples; the format's own way by default.
        group_index: The number of its group.

    Raises:
        ExportRefused: See `training_rows.trainable`; also a forked rollout, where the trainer takes one row.
    """
    rows = training_rows(result, reward, group_index=group_index)
    way = forks or format.forks
    if way is Forks.REFUSE and len(rows) != 1:
        raise ExportRefused(
            f"Rollout {result.rollout_id} has {len(rows)} samples to train, and this trainer takes exactly one. Leave "
            "its group out, or run with `on_drift: fail` so that no rollout forks."
        )
    if way is Forks.LAST:
        rows = rows[-1:]
    return [{name: take(row) for name, take in format.fields.items()} for row in rows]


def _shifted(values: Callable[[TrainingRow], list[Any]]) -> Take:
    """Takes a list over prompt and response as of the second token on: what each position predicts."""
    return lambda row: values(row)[1:]


FORMATS: Final[Mapping[str, TrainerFormat]] = {
    "trl": TrainerFormat(
        "TRL 1.16.0, trl/trainer/grpo_trainer.py, `rollout_func`",
        Forks.REFUSE,
        "a second sample of a rollout, policy versions, turns",
        {
            "prompt_ids": lambda row: row.prompt,
            "completion_ids": lambda row: row.response,
            "logprobs": lambda row: row.logprobs,
            "env_mask": lambda row: row.mask,
            "rollout_uid": lambda row: row.result.uid,
        },
    ),
    "trl_async": TrainerFormat(
        "TRL 1.16.0, trl/experimental/async_grpo/async_rollout_worker.py, `RolloutSample`",
        Forks.ROWS,
        "turns; of the versions only the oldest",
        {
            "prompt": lambda row: row.prompt_messages,
            "completion": lambda row: row.messages[row.first_sampled :],
            "input_ids": lambda row: row.ids,
            "completion_mask": lambda row: row.whole_mask,
            "old_log_probs": lambda row: row.whole_logprobs,
            "advantage": lambda row: row.reward,
            "model_version": lambda row: row.weight_step,
        },
    ),
    "verl": TrainerFormat(
        "verl 0.9.1, verl/experimental/agent_loop/agent_loop.py, `AgentLoopOutput`",
        Forks.ROWS,
        "its AgentLoop takes one row for each rollout; policy versions",
        {
            "prompt_ids": lambda row: row.prompt,
            "response_ids": lambda row: row.response,
            "response_mask": lambda row: row.mask,
            "response_logprobs": lambda row: row.logprobs,
            "reward_score": lambda row: row.reward,
            "num_turns": lambda row: row.result.num_llm_calls,
            "metrics": lambda row: {
                "generate_sequences": row.result.spans.llm_ms / 1000,
                "tool_calls": row.result.spans.tools_ms / 1000,
            },
            "extra_fields": lambda row: {**row.origin, "num_chat_turns": row.chat_turns},
        },
    ),
    "slime": TrainerFormat(
        "slime 0.3.1, slime/utils/types.py, and miles 0.0.2, miles/utils/types.py, `Sample`",
        Forks.ROWS,
        "which turn a token belongs to; miles 0.0.2 has no `rollout_id` and counts each sample of a fork",
        {
            "group_index": lambda row: row.group_index,
            "index": lambda row: row.result.index,
            # The samples of one rollout share it, so that the loss averages inside the rollout.
            "rollout_id": lambda row: row.result.index,
            # slime's prompt is messages, and its tokens are ids: they come from the ledger, never from these messages.
            "prompt": lambda row: row.prompt_messages,
            "tokens": lambda row: list(row.ids),
            "response": lambda row: "",
            "response_length": lambda row: len(row.sample.response_ids),
            "reward": lambda row: row.reward,
            "loss_mask": lambda row: row.mask,
            "rollout_log_probs": lambda row: row.logprobs,
            "weight_versions": lambda row: row.version_names,
            "status": lambda row: row.status,
            "metadata": lambda row: {**row.result.metadata, **row.origin},
        },
    ),
    "prime_rl": TrainerFormat(
        "prime-rl 0.8.0, `TrainingSample`",
        Forks.ROWS,
        "policy versions, turns",
        {
            "token_ids": lambda row: list(row.ids),
            "mask": lambda row: [bool(flag) for flag in row.whole_mask],
            "logprobs": lambda row: list(row.whole_logprobs),
            "advantages": lambda row: (
                None if row.reward is None else [row.reward if flag else 0.0 for flag in row.whole_mask]
            ),
        },
    ),
    "skyrl": TrainerFormat(
        "SkyRL 0.4.0, skyrl/train/generators/base.py, `GeneratorOutput`; train/utils/trainer_utils.py",
        Forks.ROWS,
        "policy versions, turns",
        {
            "prompt_token_ids": lambda row: row.prompt,
            "response_ids": lambda row: row.response,
            "rewards": lambda row: row.token_rewards,
            "loss_masks": lambda row: row.mask,
            "stop_reasons": lambda row: row.stop_reason,
            "rollout_logprobs": lambda row: row.logprobs,
            "is_last_step": lambda row: row.last,
        },
    ),
    "tinker": TrainerFormat(
        "Tinker 0.38.0, tinker/types, `Datum`",
        Forks.ROWS,
        "a mask (the advantage is 0 where nothing was sampled), policy versions, turns, the messages",
        {
            "model_input": lambda row: row.ids[:-1],
            # All by one: position t predicts token t + 1.
            "target_tokens": _shifted(lambda row: row.ids),
            "logprobs": _shifted(lambda row: row.whole_logprobs),
            "advantages": _shifted(lambda row: [(row.reward or 0.0) * flag for flag in row.whole_mask]),
        },
    ),
    "areal": TrainerFormat(
        "AReaL at cbff54d64, areal/workflow/rlvr.py, `arun_episode`",
        Forks.ROWS,
        "the messages",
        {
            "input_ids": lambda row: row.ids,
            "loss_mask": lambda row: row.whole_mask,
            "logprobs": lambda row: row.whole_logprobs,
            "versions": lambda row: row.versions,
            "turn_ids": lambda row: row.turns,
            "attention_mask": lambda row: [True] * len(row.ids),
            "rewards": lambda row: row.reward,
        },
    ),
    "openrlhf": TrainerFormat(
        "OpenRLHF 0.11.2, openrlhf/utils/agent.py, `AgentExecutorBase.execute`",
        Forks.REFUSE,
        "a second sample of a rollout, policy versions",
        {
            "reward": lambda row: row.reward,
            "scores": lambda row: row.reward,
            "observation_tokens": lambda row: row.ids,
            "action_ranges": lambda row: row.action_ranges,
            "rollout_log_probs": lambda row: row.whole_logprobs,
            "truncated": lambda row: row.truncated,
            "extra_logs": lambda row: {"turns": row.result.num_llm_calls, "tool_calls": row.result.num_tool_calls},
        },
    ),
    "marin": TrainerFormat(
        "Marin at 247c3a93d, lib/marin/src/marin/rl/types.py, `Rollout`",
        Forks.ROWS,
        "a mask, so only responses that the policy sampled from end to end",
        {
            "prompt_tokens": lambda row: row.prompt,
            "response_tokens": lambda row: row.response,
            "response_logprobs": lambda row: row.logprobs,
            "token_rewards": lambda row: [row.reward or 0.0] * len(row.sample.response_ids),
            "episode_reward": lambda row: row.reward or 0.0,
            "is_truncated": lambda row: row.truncated,
            "weight_step": lambda row: row.weight_step,
        },
    ),
    "marin_conversation": TrainerFormat(
        "marin-rolloutengine 0.2.227, rolloutengine/models.py, `ConversationRecord`",
        Forks.ROWS,
        "its `steps` (what each turn was asked), policy versions, the reward",
        {
            "messages": lambda row: tuple(row.messages[: row.last_answer + 1]),
            "prompt_token_ids": lambda row: tuple(row.prompt),
            "response_token_ids": lambda row: tuple(row.response),
            "loss_mask": lambda row: tuple(row.mask),
            "logprobs": lambda row: tuple(row.logprobs),
        },
    ),
}
"""By trainer."""
