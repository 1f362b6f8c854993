"""One sample of a result as a training row: everything that a trainer's format may ask for, under one name.

All trainers want the same: prompt and response ids, a mask, log-probabilities, a reward, who sampled what. Only names,
padding and the place of the reward differ. `formats` maps these names to each trainer's.

- A rollout that forked has several rows.
- A rollout that failed for a reason other than the policy is refused: it is not a sample with reward 0.
- Samples in which nothing is trained have no row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from rolloutpool_common.outcomes import FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.tokens.versions import version_number
from rolloutpool_rl.errors import ExportRefused

Reward: TypeAlias = float | Sequence[float] | None
"""The episode's reward, which each sample of a forked rollout gets, or one reward for each of `result.samples`."""

# Ended by a limit of tokens, not by the policy.
_CUT = frozenset({FinishReason.LENGTH, FinishReason.MAX_TOKENS, FinishReason.BUDGET_TOKENS})


@dataclass(frozen=True)
class TrainingRow:
    """One sample of a rollout, with its reward. Lists over prompt and response have the length T = P + R."""

    result: RolloutResult
    index: int
    """Into `result.samples`."""
    sample: Sample
    reward: float | None
    last: bool
    """Whether it is the last row of its rollout."""
    group_index: int | None = None
    """The caller's number of its group."""

    @property
    def prompt(self) -> list[int]:
        """[P]."""
        return list(self.sample.prompt_ids)

    @property
    def response(self) -> list[int]:
        """[R]."""
        return list(self.sample.response_ids)

    @property
    def mask(self) -> list[int]:
        """[R]; 1 where the policy sampled the token."""
        return list(self.sample.response_mask)

    @property
    def logprobs(self) -> list[float]:
        """[R]; 0.0 where the mask is 0."""
        return list(self.sample.response_logprobs)

    @cached_property
    def ids(self) -> list[int]:
        """[T]."""
        return [*self.sample.prompt_ids, *self.sample.response_ids]

    @cached_property
    def whole_mask(self) -> list[int]:
        """[T]; 0 on the prompt."""
        return [0] * len(self.sample.prompt_ids) + self.mask

    @cached_property
    def whole_logprobs(self) -> list[float]:
        """[T]; 0.0 on the prompt."""
        return [0.0] * len(self.sample.prompt_ids) + self.logprobs

    @property
    def versions(self) -> list[int]:
        """[T]; the number of the policy's version, -1 where the policy sampled nothing or its version is not known."""
        found = [-1] * len(self.ids)
        for start, end, segment in self._sampled:
            found[start:end] = [version_number(segment.policy_version)] * segment.n
        return found

    @property
    def turns(self) -> list[int]:
        """[T]; the turn, from 1, that sampled the token or after which it was appended; 0 on the prompt."""
        found = [0] * len(self.sample.prompt_ids)
        for segment in self.sample.segments:
            found += [segment.turn] * segment.n
        return found

    @property
    def token_rewards(self) -> list[float]:
        """[R]; the reward on the last token that is trained, 0.0 elsewhere."""
        found = [0.0] * len(self.sample.response_ids)
        found[max(i for i, flag in enumerate(self.sample.response_mask) if flag)] = self.reward or 0.0
        return found

    @property
    def action_ranges(self) -> list[tuple[int, int]]:
        """Returns where the policy's turns lie in `ids`, end exclusive."""
        return [(start, end) for _, start, end in self.turn_ranges]

    @property
    def turn_ranges(self) -> list[tuple[int, int, int]]:
        """Of each trained turn of the policy: its number, from 1, and where it lies in `ids`, end exclusive."""
        # Over an update of the weights a turn has several segments.
        turns = (list(parts) for _, parts in groupby(self._sampled, key=lambda part: part[2].turn))
        return [(parts[0][2].turn, parts[0][0], parts[-1][1]) for parts in turns]

    @property
    def version_names(self) -> list[str]:
        """The policy version of each turn, where it has one."""
        return [segment.policy_version for _, _, segment in self._sampled if segment.policy_version is not None]

    @property
    def weight_step(self) -> int:
        """The oldest version that sampled a token; -1 if none has a number."""
        return min((number for number in map(version_number, self.version_names) if number >= 0), default=-1)

    @property
    def truncated(self) -> bool:
        """Whether a limit of tokens ended the rollout."""
        return self.result.finish_reason in _CUT

    @property
    def status(self) -> str:
        """In slime's words: completed, truncated, failed, aborted."""
        if self.result.status is RolloutStatus.FAILED:
            return "failed"
        if self.result.status is not RolloutStatus.COMPLETED:
            return "aborted"
        return "truncated" if self.truncated else "completed"

    @property
    def stop_reason(self) -> str:
        """In the words of inference servers: stop or length."""
        return "length" if self.truncated else "stop"

    @cached_property
    def told_calls(self) -> int | None:
        """How many calls of the model wrote the transcript; None where it is of another line of talk than the row."""
        harness = self.result.harness
        if harness is None:
            return self.result.num_llm_calls
        told = harness.told
        return told.turns if told is not None and self.index in told.samples else None

    @property
    def needed_calls(self) -> int:
        """As `told_calls`, for exports that need each message; raises `ExportRefused` where it is none."""
        if self.told_calls is None:
            raise ExportRefused(
                f"Sample {self.index} of rollout {self.result.rollout_id} is of another line of talk than its "
                "transcript, and this export needs each message. Train no sub-agents (`harness.train`), or take "
                "another export."
            )
        return self.told_calls

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The whole transcript; empty where it is of another line of talk."""
        if self.told_calls is None:
            return []
        return [message.model_dump(exclude_none=True) for message in self.result.messages]

    @property
    def prompt_messages(self) -> list[dict[str, Any]]:
        """The messages before the policy's first one."""
        return self.messages[: self.first_sampled]

    @property
    def first_sampled(self) -> int:
        """Index of the first message that the policy wrote in this rollout; the prompt may hold earlier answers."""
        calls, written = self.told_calls or 0, self._answers
        # Counted from the end: each call of the model wrote one message, and the answers in the prompt come before.
        return written[-calls] if 0 < calls <= len(written) else len(self.messages)

    @property
    def last_answer(self) -> int:
        """Index of the last message that the policy wrote; -1 if there is none."""
        return max(self._answers, default=-1)

    @property
    def chat_turns(self) -> int:
        """The prompt is one turn, each call is one, and so is each stretch of messages that others wrote."""
        answers = groupby(message["role"] == "assistant" for message in self.messages[self.first_sampled :])
        return 1 + (self.told_calls or 0) + sum(not by_policy for by_policy, _ in answers)

    @property
    def _answers(self) -> list[int]:
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def origin(self) -> dict[str, Any]:
        """Returns where the row is from, for fields that carry anything."""
        return {
            "rollout_uid": self.result.uid,
            "sample": self.index,
            "samples": len(self.result.samples),
            "alignment": str(self.result.alignment),
        }

    @cached_property
    def _sampled(self) -> list[tuple[int, int, Any]]:
        """The trained segments, with their places in `ids`; an agent may have taken a turn out of training."""
        prompt, mask = len(self.sample.prompt_ids), self.sample.response_mask
        return [
            (prompt + segment.start, prompt + segment.start + segment.n, segment)
            for segment in self.sample.segments
            if segment.kind == "sampled" and segment.n and mask[segment.start]
        ]


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


def training_rows(result: RolloutResult, reward: Reward = None, *, group_index: int | None = None) -> list[TrainingRow]:
    """Makes the rows of a rollout; see `trainable` for arguments and errors."""
    found = list(trainable(result, reward))
    return [
        TrainingRow(result, index, sample, own, place == len(found) - 1, group_index)
        for place, (index, sample, own) in enumerate(found)
    ]
