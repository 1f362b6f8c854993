"""Results in the forms that trainers read, as plain Python values; none of their frameworks is needed.

A sample is exported as it is: ids, mask and log-probabilities are the ledger's, and nothing is cut or padded.

- A rollout that forked has several samples, and each is exported. A format that has no place for them refuses it.
- A rollout that failed for a reason other than the policy is refused: it is not a sample with reward 0.
- Samples in which nothing is trained are left out.

Each format is that of the version named in its function.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from rolloutpool_common.outcomes import FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_rl.errors import ExportRefused

__all__ = ["Reward", "prime_rl_samples", "slime_samples", "trainable", "trl_columns", "verl_outputs"]

Reward: TypeAlias = float | Sequence[float] | None
"""The episode's reward, which each sample of a forked rollout gets, or one reward for each of `result.samples`."""

# Ended by a limit of tokens, not by the policy; slime calls that truncated.
_CUT = frozenset({FinishReason.LENGTH, FinishReason.MAX_TOKENS, FinishReason.BUDGET_TOKENS})


def trainable(result: RolloutResult, reward: Reward = None) -> Iterator[tuple[int, Sample, float | None]]:
    """Yields the samples in which something is trained.

    Args:
        result: Of a rollout.
        reward: See `Reward`.

    Yields:
        (index into `result.samples`, sample, its reward).

    Raises:
        ExportRefused: The rollout must not be trained, the lists of a sample do not fit together, or there is another
            number of rewards than of samples.
    """
    # A failure of the policy itself is kept: it is what the policy should learn to avoid.
    if result.failure is not None and result.failure.kind is not FailureKind.POLICY:
        raise ExportRefused(
            f"Rollout {result.rollout_id} failed ({result.failure.kind}, {result.failure.category}) for a reason that "
            "is not the policy's. It is no training data; run it again or leave it out."
        )
    rewards = list(reward) if isinstance(reward, Sequence) else [reward] * len(result.samples)
    if len(rewards) != len(result.samples):
        raise ExportRefused(
            f"Rollout {result.rollout_id} has {len(result.samples)} samples, but {len(rewards)} rewards were given."
        )
    for index, (sample, own) in enumerate(zip(result.samples, rewards, strict=True)):
        # Trainers pair these lists by position, and a wrong length would shift the mask without an error.
        lengths = {len(sample.response_ids), len(sample.response_mask), len(sample.response_logprobs)}
        if len(lengths) != 1 or not sample.prompt_ids or not {0, 1}.issuperset(sample.response_mask):
            raise ExportRefused(
                f"Sample {index} of rollout {result.rollout_id} has no prompt, lists of different lengths, or a mask "
                "of other values than 0 and 1."
            )
        if any(sample.response_mask):
            yield index, sample, own


def verl_outputs(result: RolloutResult, reward: Reward = None) -> list[dict[str, Any]]:
    """Makes the fields of verl's `AgentLoopOutput` (verl 0.9.1).

    `num_turns` is the number of model calls, as in protocol v1. verl's own loops also count the prompt and each
    answer of tools or a user; that number is `extra_fields["num_chat_turns"]`. Metrics are in seconds.

    Args:
        result: Of a rollout.
        reward: See `Reward`.

    Returns:
        One dict for each sample.

    Raises:
        ExportRefused: See `trainable`.
    """
    return [
        {
            "prompt_ids": list(sample.prompt_ids),
            "response_ids": list(sample.response_ids),
            "response_mask": list(sample.response_mask),
            "response_logprobs": list(sample.response_logprobs),
            "reward_score": own,
            "num_turns": result.num_llm_calls,
            "metrics": {
                "generate_sequences": result.spans.llm_ms / 1000,
                "tool_calls": result.spans.tools_ms / 1000,
            },
            "extra_fields": {**_origin(result, index), "num_chat_turns": _chat_turns(result)},
        }
        for index, sample, own in trainable(result, reward)
    ]


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
    # slime's prompt is messages, and its tokens are ids: the ids come from the ledger, never from these messages.
    prompt = [message.model_dump(exclude_none=True) for message in result.messages[: _first_sampled(result)]]
    return [
        {
            "group_index": group_index,
            "index": result.index,
            "rollout_id": result.index,
            "prompt": prompt,
            "tokens": [*sample.prompt_ids, *sample.response_ids],
            "response": decode(sample.response_ids) if decode else "",
            "response_length": len(sample.response_ids),
            "reward": own,
            "loss_mask": list(sample.response_mask),
            "rollout_log_probs": list(sample.response_logprobs),
            "weight_versions": [s.policy_version for s in sample.segments if s.policy_version is not None],
            "status": _slime_status(result),
            "metadata": {**result.metadata, **_origin(result, index)},
        }
        for index, sample, own in trainable(result, reward)
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
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "rollout_uid")
    }
    for result in results:
        samples = [sample for _, sample, _ in trainable(result)]
        if len(samples) != 1:
            raise ExportRefused(
                f"Rollout {result.rollout_id} has {len(samples)} samples to train, and TRL takes exactly one. Leave "
                "its group out, or run with `on_drift: fail` so that no rollout forks."
            )
        columns["prompt_ids"].append(list(samples[0].prompt_ids))
        columns["completion_ids"].append(list(samples[0].response_ids))
        columns["logprobs"].append(list(samples[0].response_logprobs))
        columns["env_mask"].append(list(samples[0].response_mask))
        columns["rollout_uid"].append(result.uid)
    return columns


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
    exported = []
    for _, sample, own in trainable(result, advantage):
        prompt = len(sample.prompt_ids)
        mask = [False] * prompt + [bool(m) for m in sample.response_mask]
        exported.append(
            {
                "token_ids": [*sample.prompt_ids, *sample.response_ids],
                "mask": mask,
                "logprobs": [0.0] * prompt + list(sample.response_logprobs),
                "temperatures": [temperature] * len(mask),
                "env_name": env_name,
                "advantages": None if own is None else [own if m else 0.0 for m in mask],
            }
        )
    return exported


def _origin(result: RolloutResult, index: int) -> dict[str, Any]:
    return {
        "rollout_uid": result.uid,
        "sample": index,
        "samples": len(result.samples),
        "alignment": str(result.alignment),
    }


def _first_sampled(result: RolloutResult) -> int:
    """Index of the first message that the policy wrote in this rollout; the prompt may hold earlier answers."""
    # Counted from the end, because each call of the model wrote one message, and the answers in the prompt come before.
    written = [i for i, message in enumerate(result.messages) if message.role == "assistant"]
    return written[-result.num_llm_calls] if 0 < result.num_llm_calls <= len(written) else len(result.messages)


def _chat_turns(result: RolloutResult) -> int:
    # The prompt is one turn, each call is one, and so is each stretch of messages that others wrote.
    answers = groupby(message.role == "assistant" for message in result.messages[_first_sampled(result) :])
    return 1 + result.num_llm_calls + sum(not by_policy for by_policy, _ in answers)


def _slime_status(result: RolloutResult) -> str:
    if result.status is RolloutStatus.FAILED:
        return "failed"
    if result.status is not RolloutStatus.COMPLETED:
        return "aborted"
    return "truncated" if result.finish_reason in _CUT else "completed"
